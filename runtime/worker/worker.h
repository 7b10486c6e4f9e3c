// Worker: a trainer's link to its job. A thread of its own, the control thread, talks to the
// scheduler. It carries out what the member machine says; the trainer machine stands between it and
// the training thread, which never waits for it in a healthy step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "config/settings.h"
#include "core/trainer/machine.h"
#include "io/trace.h"
#include "runtime/worker/key_values.h"
#include "runtime/worker/neighbours.h"

namespace holdfast::runtime {

// This process's place in the job.
struct Identity {
  Rank rank = 0;
  Rank local_rank = 0;          // This rank's number among the ranks of its host, in rank order.
  std::int32_t world_size = 1;  // The workers: ranks 0 to world_size - 1.
  std::int32_t servers = 0;     // Parameter servers: the ranks after them.
  std::uint64_t run_id = 0;
  // Holds arenas and segments. It is on tmpfs, and the same for all ranks of a host.
  std::string directory;

  [[nodiscard]] std::int32_t all_ranks() const { return world_size + servers; }
  [[nodiscard]] bool serves() const { return rank >= world_size; }
};

class Drills;
class Meter;
class Rehearsal;

// One per process. Threads: everything is called by the training thread, unless said otherwise.
// An Error is final: the job is over, or this process has no place in it.
class Worker {
 public:
  // Does: holds the lifeline, and begins to connect and register (a spare does not: see
  // identity()). Call it in the main thread. Without MS_ROLE the process trains alone: there is no
  // scheduler, and its directory is removed at exit. Returns at once; a scheduler that does not
  // answer is reported by the first call that waits for it.
  [[nodiscard]] static Result<std::unique_ptr<Worker>> start(const config::Settings& settings);
  ~Worker();  // Hangs up and lets go of the lifeline. So does exit().
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Waits until the ranks are given. A spare waits here for its place first, and only then
  // registers; it exits quietly with code 0 if the job ends without needing it. Later calls return
  // the same at once. A process that gets a parameter server's place serves here, and exits when
  // the training has ended. Errors: no scheduler within HOLDFAST_SCHEDULER_TIMEOUT; refused, and
  // why.
  [[nodiscard]] Result<Identity> identity();

  [[nodiscard]] bool solo() const;  // This process trains alone, without a scheduler.
  // The rank for which this spare was started; known from its start. kNoRank: any, or it is no
  // spare.
  [[nodiscard]] Rank bound_rank() const;
  // The step is made. The agent can read that after this process's end.
  void note_step(Version version) const;
  [[nodiscard]] bool waits_spare() const;  // A spare: identity() would wait for a place.
  [[nodiscard]] const config::Settings& settings() const;
  [[nodiscard]] const io::Trace& trace() const;

  // The job's key-values, also for a spare without a place. Any thread. Requires: not solo().
  [[nodiscard]] KeyValues& key_values();

  // ---- For Session ------------------------------------------------------------------------------

  // Brings an event to the trainer machine. Any thread.
  void tell(const trainer::Event& event);
  // Waits for the next work that the machine has for the training thread. After each call of the
  // program that it was told, the last work is a trainer::Return.
  [[nodiscard]] trainer::Work next_work();
  [[nodiscard]] Generation generation() const;  // The newest in which the machine said to train.
  // `handler` is called when the groups of a generation and of earlier ones have to end. It must
  // not block, and returns whether no sum is under way. Null: no handler any more. After the return
  // the former handler is not running.
  void on_stop(std::function<bool(Generation)> handler);

  // The rehearsal that this process is (HOLDFAST_REHEARSE), once identity() has returned: it leads
  // the trainer machine in the scheduler's place. Null: this process does not rehearse.
  [[nodiscard]] Rehearsal* rehearsal() const { return shared_rehearsal().get(); }
  [[nodiscard]] const std::shared_ptr<Rehearsal>& shared_rehearsal() const;

  [[nodiscard]] Neighbours& neighbours();  // Any thread.

  [[nodiscard]] Drills& drills();
  [[nodiscard]] Meter& meter();

  // Waits for `limit`. Errors: the job is over (why); the scheduler has been gone for longer than
  // HOLDFAST_SCHEDULER_TIMEOUT.
  [[nodiscard]] Status pause(Duration limit);

  // Tells the scheduler that this rank's training has ended in good order (where Session::join()
  // never came back: without training), and waits until that is on record, at most for
  // settings().scheduler_timeout; then it warns. Does nothing in a process that trains alone, and
  // in a spare without a place.
  [[nodiscard]] Status end();

  // Has `holdfast status` show what this server holds: JSON, for the next Progress.
  void note_holds(std::string json);

  // Has all users of the job told something that decides nothing (wire::Remark).
  void remark(const wire::Reason& what);

  // Tells the scheduler that the job can not go on and waits until that is on record (5 s at most).
  // Returns the error that the caller is to return.
  [[nodiscard]] Error fail(const wire::Reason& reason);
  [[nodiscard]] Error fail(std::string words);  // The same for an error of the program.

 private:
  struct Control;
  explicit Worker(std::unique_ptr<Control> control);
  [[noreturn]] void serve_and_exit();
  std::unique_ptr<Control> control_;
};

}  // namespace holdfast::runtime
