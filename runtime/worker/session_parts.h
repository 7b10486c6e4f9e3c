// Session::Parts: what a session consists of. For session.cc, which has the calls of the program,
// and session_work.cc, which does the work that the trainer machine gives to the training thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "collective/current_generation.h"
#include "collective/group.h"
#include "collective/queue.h"
#include "collective/regions.h"
#include "collective/tape.h"
#include "os/lifeline.h"
#include "runtime/worker/drills.h"
#include "runtime/worker/meter.h"
#include "runtime/worker/private_copies.h"
#include "runtime/worker/recorder.h"
#include "runtime/worker/session.h"
#include "wording/hosts.h"

namespace holdfast::runtime {

inline const std::string kWholeWorld;  // The name of the group of all ranks, on tapes.

struct Session::Parts {
  Parts(Worker& w, Identity i, std::unique_ptr<StateStore> s);
  ~Parts() {
    if (keeping.joinable()) keeping.join();
  }

  // Tells the trainer machine of a call, and does its work until it returns to the program.
  trainer::Return call(const trainer::Event& event);
  // Does the machine's work. nullopt: the next is `due`, for which this rank has to fill version 0.
  std::optional<trainer::Return> go_on(bool is_filled);
  [[nodiscard]] bool needs_beginning(const trainer::Repair& work) const;
  bool has_lost_pages();
  void do_work(const trainer::Repair& work);
  void do_work(const trainer::Unstage&) { store->unstage(); }
  void now(Doing doing) const {
    board->doing.store(doing, std::memory_order_relaxed);
    worker.meter().enter(doing);
    worker.drills().begin(doing, *store);
  }
  void enter(Generation entered);
  void do_work(const trainer::JoinGroup& work);
  void do_work(const trainer::LeaveGroup&);
  void do_work(const trainer::AwaitSums&);
  void do_work(const trainer::Stage& work);
  void do_work(const trainer::ExchangeCopies& work);
  void do_work(const trainer::Hold&) { now(Doing::kCommitting); }
  void do_work(const trainer::Arrive&);
  void do_work(const trainer::Update& work);
  void begin_keeping(bool has_lost);
  // Tells of the copy once it is made. `spoilt`: why it does not count; empty: it does.
  void end_keeping(const std::string& spoilt = {});

  [[nodiscard]] Version version() const { return store->holding().version; }
  [[nodiscard]] Error error_of(const trainer::Return& result);
  collective::Outcome note(collective::Outcome outcome);
  collective::Outcome note(const collective::Verdict& verdict);  // Of an exchange with servers.
  void wait_for_sums();
  Status join_copies(const collective::Layout& layout, const std::stop_token& stopped,
                     const collective::Group& formed);
  [[nodiscard]] wording::Cover cover_now(bool has_other_hosts) const;
  void say_cover(bool has_other_hosts);
  void drop_group();
  collective::Group::Options group_options(Generation formed);
  void trace_step();
  [[nodiscard]] bool is_aborted() const { return group->aborted() || everyone->aborted(); }
  void for_workers(collective::Group::Options& options);
  [[nodiscard]] Result<std::shared_ptr<collective::Group>> form_workers(
      collective::Group::Options options, const std::stop_token& stopped);
  [[nodiscard]] collective::Layout of_workers(collective::Layout layout) const;
  void abort_groups();
  [[nodiscard]] std::string why_not_done() const;
  bool stop(Generation stopped);
  collective::Group& idle_group();
  void open_recorder();
  void end_sample(bool is_made);
  // An operation of the body of a step, in the caller's thread.
  template <class Body>
  collective::Outcome exchange(Body body) {
    const collective::Waiting waiting;
    collective::Group& idle = idle_group();
    if (!tape) return note(body(idle));
    collective::RecordedGroup recorded(idle, kWholeWorld, *tape);
    return note(body(static_cast<collective::Group&>(recorded)));
  }

  Worker& worker;
  Identity identity;
  std::unique_ptr<StateStore> store;
  std::shared_ptr<collective::Regions> regions;
  std::shared_ptr<os::Board> board;  // For this host's agent.
  std::shared_ptr<collective::CurrentGeneration> current;
  std::function<void(Generation)> on_stop;
  std::atomic<pid_t> sums_thread = 0;  // The queue's thread; 0: it has not begun.
  arena::Position begin_position;
  std::optional<trainer::Repair> due;           // The work that the next call of meet() does first.
  bool was_cleared = false;                     // What the program filled before was overwritten.
  std::shared_ptr<collective::Group> group;     // Of the workers; a server's is `everyone`.
  std::shared_ptr<collective::Group> everyone;  // Without servers the same.
  std::optional<std::stop_callback<std::function<void()>>> on_abort_of_all;  // Ends `everyone`.
  std::unique_ptr<TableClient> tables;                                       // Null: no servers.
  std::string table_why;  // Why an exchange with the servers was refused in this step.
  std::optional<wording::Cover> cover;  // What say_cover() said last.
  // Whether what only this rank has goes to another host in each step.
  bool exchanges = false;
  std::unique_ptr<PrivateCopies> copies;  // Uses the group; null: a server's do without.
  Generation generation = 0;              // The newest in which the machine said to go on.
  std::shared_ptr<Recorder> recorder;     // Null: nobody rehearses this rank's steps.
  std::shared_ptr<Recorder> tape;         // The recorder while a step is being recorded.
  // Something was made of the committed private bytes since the last look for losses.
  bool was_used = true;
  bool compares = true;  // Set by compare_exchanges().
  pid_t owner = ::getpid();
  Rank ended_rank = kNoRank;  // After Began::kTooLate: the rank that has ended.
  bool ended = false;
  // The sums of the step under way. Null: the sum never began, because the group was aborted.
  std::vector<std::shared_ptr<collective::Work>> sums;
  collective::Outcome mark =
      collective::Outcome::kDone;           // The first failure in the step under way.
  const arena::StagedStep* step = nullptr;  // While end_step() runs, as are the next two.
  double loss = 0;
  std::uint64_t samples = 0;
  std::thread keeping;  // Copies this rank's part of a snapshot, beside the next step.
  Status kept;          // How that has ended; not to be read before the thread's end.
  std::shared_ptr<collective::Queue> queue;  // Last: its thread uses all above.
};

}  // namespace holdfast::runtime
