// Worker::Control: what a worker's control thread and its training thread share, and what the
// control thread does. For worker.cc and worker_control.cc only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/member/machine.h"
#include "core/trainer/machine.h"
#include "io/loop.h"
#include "io/trace.h"
#include "os/host.h"
#include "runtime/jobs/agent_watch.h"
#include "runtime/jobs/scheduler_link.h"
#include "runtime/worker/address_lookup.h"
#include "runtime/worker/drills.h"
#include "runtime/worker/key_values.h"
#include "runtime/worker/meter.h"
#include "runtime/worker/neighbours.h"
#include "runtime/worker/promotion.h"
#include "runtime/worker/rehearsal.h"
#include "runtime/worker/worker.h"

namespace holdfast::runtime {

struct Worker::Control {
  explicit Control(const config::Settings& s);
  ~Control();

  const pid_t owner = ::getpid();

  void begin();
  Status begin_rehearsal();
  void see_agent() const {
    if (agent.gone()) agent.follow();
  }
  Result<Identity> place_in_world();

  // Called in the loop's thread.
  void greet_scheduler();
  void lose_scheduler(const Error& why);
  void beat();
  void look_after_agent();
  void step(const member::Event& event);
  void do_it(member::Send& a) { link.send(a.message); }
  void do_it(member::RankGiven& a);
  void do_it(Assigned& a);
  void do_it(member::AwaitAddresses&) { lookup.begin(); }
  void do_it(member::Released&) { tell(trainer::Released{}); }
  void do_it(member::Say& a);
  void do_it(member::TakeSnapshot& a) { tell(trainer::SnapshotAsked{a.generation, a.version}); }
  void do_it(member::BeDrilled& a) {
    if (settings.allow_inject) return drills.order(a.drill);
    std::fprintf(stderr,
                 "holdfast: no drill comes here: this host's command has no "
                 "--allow-inject\n");
  }
  void do_it(member::GiveUp& a);

  // Called in any thread.
  void post(member::Event event);
  void tell(const trainer::Event& event);
  void carry_out(trainer::Do& a);
  void carry_out(trainer::Say& a);
  void carry_out(trainer::StopGroup& a);
  void carry_out(trainer::StopRepair&) { neighbours.stop_repair(); }
  void carry_out(trainer::Resume& a);
  // Called without the lock, so that nobody waits for the trace's file.
  void trace_event(const trainer::NoteStopped& a);
  void trace_event(const trainer::NoteParked& a);
  void trace_event(const trainer::Resume& a);
  template <class Other>
  void carry_out(const Other&) {}
  template <class Other>
  void trace_event(const Other&) {}

  // The training thread waits until `ready`. False: `limit` has passed. Errors: why there is
  // nothing more to wait for.
  template <class Ready>
  Result<bool> wait(std::unique_lock<std::mutex>& lock, Duration limit, Ready ready);

  config::Settings settings;
  AgentWatch agent{settings};
  io::Trace trace;

  const Rank bound_rank = rank_of_bound_spare(settings);

  // The training thread only.
  bool promoted = false;
  std::optional<Identity> known;  // Once identity() has given it.

  // The loop's thread only.
  io::Loop loop;
  std::optional<member::Machine> machine;
  SchedulerLink link{
      loop,
      settings,
      wire::PeerKind::kWorker,
      {.on_up = [this] { greet_scheduler(); },
       .on_message = [this](wire::Message m) { step(member::Received{std::move(m)}); },
       .on_down = [this] { step(member::Disconnected{}); },
       .on_out_of_reach = [this](const Error& why) { lose_scheduler(why); }}};
  AddressLookup lookup{loop,
                       os::runtime_path(settings.job),
                       {.is_awaited = [this] { return machine->awaits_addresses(); },
                        .on_found =
                            [this](std::shared_ptr<const AddressBook> book) {
                              step(member::AddressesFound{std::move(book)});
                            },
                        .on_overdue = [this] { step(member::AddressesOverdue{}); }}};
  // For a promoted spare, all threads of which have a short slice: their agent gave it to them, or
  // they inherited it. When training goes on, all but `lifeline_holder` lose it.
  bool hurried = false;
  pid_t lifeline_holder = 0;

  // Shared by both.
  std::mutex mutex;
  std::condition_variable changed;
  trainer::Machine trainer;
  std::deque<trainer::Event> events;  // Not empty: some thread brings them to the machine.
  std::deque<trainer::Work> work;
  std::optional<Identity> place;  // Its directory is not set.
  std::optional<Error> over;
  bool stood_by = false;              // See member::GiveUp.
  std::string holds;                  // For the next Progress: what a server holds.
  std::optional<Error> out_of_reach;  // While the scheduler has been gone for too long.

  std::function<bool(Generation)> stop_groups;

  KeyValues key_values{settings};
  Neighbours neighbours{
      settings, [this](Rank peer, const std::string& at) {
        post(member::Told{
            wire::Remark{{.kind = wire::Reason::Kind::kDamaged, .count = peer, .other_host = at}}});
      }};
  Drills drills{[this] { return neighbours.cut_links(); }};
  Meter meter;

  std::shared_ptr<Rehearsal> rehearsal;  // Set before the trainer machine hears of anything.

  std::atomic<pid_t> training_thread = 0;
  std::atomic<Rank> rank = kNoRank;  // kNoRank until it is known.

  std::thread thread;  // Last: it uses all above.
};

}  // namespace holdfast::runtime
