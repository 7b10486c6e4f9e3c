// Session: the training thread's side of a job, for any framework. It keeps a state in a
// StateStore, exchanges gradients and commits steps. After a fault it repairs the state, joins a
// new group and says what to replay.
//
// The loop of a trainer (runtime/testing/toy.cc is one):
//
//   auto session = *Session::open(worker, in_arena(layout));  // waits for the rank
//   arena::Arena& arena = arena_of(*session);
//   while (*session->meet({}) == Met::kToFill) fill parameters, moments and private_bytes(0)
//   restore what private_bytes(version) holds
//   while (session->version() < last) {
//     if (*session->begin_step() == Began::kReformed) restore the same
//     n = session->version() + 1; fill arena.gradients(), bucket by bucket reduce(bucket)
//     fill private_bytes(n)
//     if (*session->end_step({...}, loss) == Ended::kVoid) restore the same; n is made again
//   }
//   check(session->end());
//
// After kVoid, kReformed and join(), restore all that the step depends on and that the store does
// not hold in place. It is in arena.private_bytes(version()).
//
// Threads: one training thread calls everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "arena/arena.h"
#include "base/ids.h"
#include "base/result.h"
#include "collective/current_generation.h"
#include "collective/group.h"
#include "collective/numbers.h"
#include "collective/queue.h"
#include "collective/regions.h"
#include "runtime/worker/rehearsal.h"
#include "runtime/worker/state_store.h"
#include "runtime/worker/table_client.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {

enum class Met : std::uint8_t {
  kJoined,
  kToFill,  // All ranks begin at version 0, and this rank has to fill its own.
};

enum class Began : std::uint8_t {
  kAtOnce,
  kReformed,  // The group was formed anew, since a fault came between two steps.
  kTooLate,   // No step was begun: another rank's training has ended; why_too_late() names it.
};

enum class Ended : std::uint8_t {
  kCommitted,  // version() is n on every rank, now or after its recovery.
  kVoid,       // A fault came before the step was complete; version() is n - 1.
};

class Session {
 public:
  // Does: waits for the rank (Worker::identity) and opens this rank's state, as its predecessor
  // left it. Errors: those of Worker::identity and of `open_store`.
  [[nodiscard]] static Result<std::unique_ptr<Session>> open(Worker& worker,
                                                             const OpenStore& open_store);
  // Without end() before, the other ranks stop waiting for this one, as after its death.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Identity& identity() const;
  [[nodiscard]] StateStore& store();
  [[nodiscard]] Version version() const;  // The committed version.
  [[nodiscard]] Generation generation() const;

  // Does: agrees with the other ranks on a version and brings the state to it. kToFill: the arena
  // is fresh; fill its parameters, moments and private_bytes(0), and call meet() again. Whether
  // these values count, or those of another rank, is not this rank's choice; those of a successor
  // are mostly not needed. `position`: of version 0. Ends with a state that holds a version.
  [[nodiscard]] Result<Met> meet(const arena::Position& position);
  // meet(), until it returns kJoined. Requires: a fresh arena is filled.
  [[nodiscard]] Status join(const arena::Position& position);

  // Call it before the gradients of a step are touched. Forms the group if there is none or it was
  // aborted. Gives up a step that was begun and not ended; all ranks must do that alike.
  [[nodiscard]] Result<Began> begin_step();
  // After kTooLate, one sentence: nothing can be exchanged with a rank that has ended. The state of
  // version() is whole, and end() may be called.
  [[nodiscard]] std::string why_too_late() const;

  // Whether the step that has just begun wants notes, because it is recorded for a rehearsal, or
  // rehearsed (rehearsal.h). Call it at the beginning of the work that a successor would repeat, in
  // each step at the same place.
  [[nodiscard]] bool sample();
  // Notes the digest of something that the step depends on or has made. All ranks of a program use
  // the same names. Requires: sample() was true. Any thread.
  void note(std::string_view name, std::span<const std::byte> bytes);
  // While off, only the sizes of what this rank gives to exchanges are compared.
  void compare_exchanges(bool on);
  // The rehearsal that this process is; null: it is a member of the job.
  [[nodiscard]] Rehearsal* rehearsal() const;

  // Starts the sum over all ranks of a range of store().gradients(), in place. Every rank passes
  // the same ranges in the same order. The range belongs to the Session until end_step().
  void reduce(collective::Numbers bucket);

  // Ends step version() + 1: waits for its sums, stages it, waits until all ranks have, makes the
  // update. Requires: begin_step() before. A fault meanwhile is recovered from in here. `loss` is
  // for traces and status only; `samples`, for traces only, is a digest that tells which samples
  // the step used. Errors: the job is over; the ranks do not do the same.
  [[nodiscard]] Result<Ended> end_step(const arena::StagedStep& step, double loss,
                                       std::uint64_t samples = 0);

  // For the body of a step. kDone on all ranks or on none; after anything else the step will be
  // void, and the contents of the output are undefined.
  collective::Outcome barrier();
  collective::Outcome broadcast(std::span<std::byte> bytes, Rank root);
  collective::Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all);

  // For faces that exchange more than the above: the group of generation(), null before the first
  // begin_step() and aborted after a fault. Its operations come between begin_step() and
  // end_step(), and must have ended before either is called: a wait for them in end_step() may be
  // taken for a standstill.
  [[nodiscard]] std::shared_ptr<collective::Group> group() const;
  // The job's parameter servers; null: it has none. Define tables before the first meet() or
  // join().
  [[nodiscard]] TableClient* tables() const;
  // As group(), of all ranks: workers and servers. Without servers it is group().
  [[nodiscard]] std::shared_ptr<collective::Group> everyone() const;
  // What the teams of some ranks belong to: their groups end when a generation is aborted.
  [[nodiscard]] const std::shared_ptr<collective::CurrentGeneration>& current() const;
  // The queue of the operations on the group of all ranks: sums and all others. begin_step(),
  // end_step() and end() wait for these. Release it before the Session ends: the queue's thread
  // calls the Session.
  [[nodiscard]] const std::shared_ptr<collective::Queue>& queue() const;
  // The memory of this rank into which sums write without copies. Memory may be added and removed
  // at any time; the Regions outlive the Session. Any thread.
  [[nodiscard]] const std::shared_ptr<collective::Regions>& regions() const;
  // `handler` is called in the control thread, which it must not block, when all work of this
  // generation and of earlier ones has to end. Null: no handler any more. After the return the
  // former handler is not running.
  void on_abort(std::function<void(Generation)> handler);

  // Call it when something that is not in this version's own step is made of the committed private
  // bytes, such as a version that repeats most of them. (After kVoid, kReformed and join() this is
  // known.)
  void uses_committed();
  // Says that the program begins to write the step under way down. Else end_step() does.
  void staging();
  // Looks whether memory errors have taken pages that this rank trains with. If so, the group ends,
  // and with it the step under way; the next begin_step() or end_step() gets the state back. These
  // two look as well: call it only before bytes of the state are used between them.
  [[nodiscard]] bool has_lost_pages();
  // What was kept of the committed version for a snapshot does not count: this rank's memory was
  // wrong. Call it before that memory is changed.
  void spoil_part();

  // The training has ended in good order on this rank: says so and waits until it is on record
  // (HOLDFAST_SCHEDULER_TIMEOUT at most). For the end of the program, not of a loop; never while an
  // exception is in flight. Afterwards no step can be made. A second call does nothing.
  [[nodiscard]] Status end();

 private:
  struct Parts;
  explicit Session(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace holdfast::runtime
