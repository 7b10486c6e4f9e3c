#include "runtime/worker/worker_control.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "os/fd.h"
#include "os/files.h"
#include "os/slice.h"
#include "runtime/worker/lifeline_holder.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kHeartbeat = AgentWatch::kEvery;
// From a group that can not be formed to the scheduler's word of its cause.
constexpr Duration kFaultPatience = 20s;
constexpr Duration kLinkPatience = 1s;  // From the end of a group to the complaint about it.
constexpr Duration kProgressInterval = 250ms;
// Times the number of workers: in a large world each of them reports more rarely.
constexpr Duration kProgressOfEach = 100us;

trainer::Options trainer_options(const config::Settings& settings) {
  return {.solo = settings.role == config::Role::kNone,
          .serves = settings.role == config::Role::kServer,
          .protect = settings.protect,
          .replacement_timeout = settings.replacement_timeout,
          .link_patience = kLinkPatience,
          .forming_patience = kFaultPatience,
          .scheduler_timeout = settings.scheduler_timeout,
          .progress_interval =
              std::max<Duration>(kProgressInterval, kProgressOfEach * settings.worker_num)};
}

}  // namespace

Worker::Control::Control(const config::Settings& s) : settings(s), trainer(trainer_options(s)) {}

// ---- The control thread -------------------------------------------------------------------------

void Worker::Control::begin() {
  machine.emplace(wire::Register{.job = settings.job,
                                 .node_id = settings.node_id,
                                 .incarnation = settings.incarnation,
                                 .attempt = settings.attempt,
                                 .host = os::host_name(),
                                 .pid = ::getpid(),
                                 .memory = os::shared_memory_name(),
                                 .domain = settings.domain,
                                 .serves = settings.role == config::Role::kServer});
  loop.post([this] { link.open(); });
  loop.after(kHeartbeat, [this] { beat(); });
  thread = std::thread([this] {
    (void)os::take_short_slice();  // So that it can stop the training threads at once.
    loop.run();
  });
}

Worker::Control::~Control() {
  if (!thread.joinable()) return;
  loop.post([this] {
    if (rehearsal) return loop.stop();
    link.close([this] { loop.stop(); });
  });
  thread.join();
}

void Worker::Control::greet_scheduler() {
  {
    const std::lock_guard lock(mutex);
    out_of_reach.reset();
  }
  tell(trainer::InReach{});
  step(member::Connected{neighbours.listen(link.local_address())});
}

void Worker::Control::lose_scheduler(const Error& why) {
  {
    const std::lock_guard lock(mutex);
    out_of_reach = why;
    changed.notify_all();
  }
  tell(trainer::OutOfReach{{.kind = wire::Reason::Kind::kOutOfReach, .detail = why.what}});
}

// There is no scheduler: the thread only looks whether the agent lives.
Status Worker::Control::begin_rehearsal() {
  auto folder = os::runtime_directory(settings.job);
  if (!folder) return folder.error();
  auto begun =
      Rehearsal::begin(*folder, settings.rehearse, settings.attempt == 2, [this] { see_agent(); });
  if (!begun) return begun.error();
  rehearsal = *std::move(begun);
  // If the host's memory runs out, the kernel kills this process first, and no rank for it.
  const os::Fd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (score) (void)os::write_all(score.get(), "1000");
  rank = settings.rehearse;
  loop.after(kHeartbeat, [this] { look_after_agent(); });
  thread = std::thread([this] { loop.run(); });
  return {};
}

void Worker::Control::look_after_agent() {
  see_agent();
  loop.after(kHeartbeat, [this] { look_after_agent(); });
}

void Worker::Control::beat() {
  see_agent();
  link.send(wire::Heartbeat{});
  loop.after(kHeartbeat, [this] { beat(); });
}

void Worker::Control::step(const member::Event& event) {
  for (auto& action : machine->step(event)) {
    std::visit([&](auto& a) { do_it(a); }, action);
  }
}

// How many lower ranks share this rank's host. `peers` is empty if all do.
Rank local_rank_among(const std::vector<PeerPlace>& peers, Rank rank) {
  const auto me = static_cast<std::size_t>(rank);
  if (me >= peers.size()) return rank;
  const auto same = [&](const PeerPlace& peer) { return peer.host == peers[me].host; };
  return static_cast<Rank>(std::count_if(peers.begin(), peers.begin() + rank, same));
}

void Worker::Control::do_it(member::RankGiven& a) {
  neighbours.placed(a.run_id, a.rank);
  neighbours.meet(a.peers->places());
  const std::lock_guard lock(mutex);
  place = Identity{.rank = a.rank,
                   .local_rank = local_rank_among(a.peers->places(), a.rank),
                   .world_size = a.world_size - settings.server_num,
                   .servers = settings.server_num,
                   .run_id = a.run_id};
  rank = a.rank;
  changed.notify_all();
}

void Worker::Control::do_it(member::Say& a) {
  std::fprintf(stderr, "holdfast: %s\n", wording::in_words(a.reason).c_str());
}

void Worker::Control::do_it(Assigned& a) {
  const bool runs = a.part.stage == wire::Stage::kRunning;
  if (runs && std::exchange(hurried, false)) os::take_usual_slice_of_others(lifeline_holder);
  tell(a);
}

void Worker::Control::do_it(member::GiveUp& a) {
  link.retire();
  if (a.job_ended) tell_lifeline_of_end(a.success);
  {
    const std::lock_guard lock(mutex);
    over = Error{Blame::kWorld, wording::in_words(a.reason)};
    stood_by = a.stood_by;
    changed.notify_all();
  }
  tell(trainer::JobOver{a.success, a.reason});
}

// ---- Any thread ---------------------------------------------------------------------------------

void Worker::Control::post(member::Event event) {
  if (settings.role == config::Role::kNone) return;
  loop.post([this, event = std::move(event)] { step(event); });
}

void Worker::Control::tell(const trainer::Event& event) {
  trainer::Actions done;
  {
    const std::lock_guard lock(mutex);
    events.push_back(event);
    while (!events.empty()) {
      auto actions = trainer.step(io::Loop::now(), events.front());
      events.pop_front();
      for (auto& action : actions) {
        std::visit([&](auto& a) { carry_out(a); }, action);
        done.push_back(std::move(action));
      }
    }
    changed.notify_all();
  }
  for (const auto& action : done) std::visit([&](const auto& a) { trace_event(a); }, action);
}

void Worker::Control::carry_out(trainer::Do& a) {
  if (std::holds_alternative<trainer::Repair>(a.work)) neighbours.begin_repair();
  work.push_back(std::move(a.work));
}

void Worker::Control::carry_out(trainer::Say& a) {
  // Brought by the training thread, once the step is made.
  if (auto* progress = std::get_if<wire::Progress>(&a.message)) {
    meter.tell(*progress);
    progress->holds = std::exchange(holds, {});
  }
  if (!rehearsal) return post(member::Told{std::move(a.message)});
  for (auto& assigned : rehearsal->hear(a.message)) events.push_back(std::move(assigned));
}

// StopGroup is answered at once.
void Worker::Control::carry_out(trainer::StopGroup& a) {
  // All ranks wait for the last one to stop, so this one must not have to wait for a core, too:
  // spares and new processes keep the cores busy now.
  if (training_thread != 0) (void)os::take_short_slice(training_thread);
  events.push_back(trainer::GroupStopped{!stop_groups || stop_groups(a.generation)});
}

void Worker::Control::carry_out(trainer::Resume& a) {
  neighbours.meet(a.peers->places());
  // In the steps to come all training threads are equal again.
  if (training_thread != 0) os::take_usual_slice(training_thread);
  tell_lifeline(a.version);
}

void Worker::Control::trace_event(const trainer::NoteStopped& a) {
  trace.event("stop", {{"rank", rank.load()}, {"generation", a.generation}});
}

void Worker::Control::trace_event(const trainer::NoteParked& a) {
  trace.event("parked", {{"rank", rank.load()},
                         {"generation", a.generation},
                         {"version", a.holding.version},
                         {"waited_since_ns", a.called_at.count()}});
}

void Worker::Control::trace_event(const trainer::Resume& a) {
  trace.event("resume",
              {{"rank", rank.load()}, {"generation", a.generation}, {"version", a.version}});
}

}  // namespace holdfast::runtime
