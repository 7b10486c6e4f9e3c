#include "core/agent/shutdown.h"

#include <algorithm>

#include "core/agent/process_end.h"

namespace holdfast::agent {

using wire::Reason;

namespace {

constexpr std::int32_t kTerminated = 128 + 15;

// The exit code of an agent that hears why the job has ended elsewhere. Who starts jobs again looks
// at it: all hosts of a job that was told to end have that of the signal.
std::int32_t code_of(const Reason& reason) {
  if (reason.kind == Reason::Kind::kStopped) return kTerminated;
  const bool is_signal = reason.count > 0 && reason.count < 128;
  return reason.kind == Reason::Kind::kInterrupted && is_signal
             ? 128 + static_cast<std::int32_t>(reason.count)
             : 1;
}

}  // namespace

// A program may save its state on the signal, at the end of its step. So the scheduler does not
// hear of the interruption before the workers have ended, or their grace period is over.
void Shutdown::on(const Interrupted& e) {
  if (workers_leave_) return say_interrupted();
  if (stays_) {
    gave_up_ = true;
    return;
  }
  if (job_.is_ending()) return end_all(false);
  if (echo_pause_ != 0) return;
  const Duration patience = options_.snapshot_patience;
  const bool may_wait = patience > Duration{} && job_.state == State::kRunning &&
                        job_.link == LinkState::kUp && !job_.workers_done();
  if (std::exchange(signal_, e.signal) == 0 && may_wait) {
    have_job_go_on();
    job_.send(wire::Snapshot{.word = wire::SnapshotWord::kAsk});
    snapshot_pause_ = job_.pause(patience);
    echo_pause_ = job_.pause(kEcho);
    return job_.emit(Say{{.kind = Reason::Kind::kSnapshotFirst,
                          .count = e.signal,
                          .total = patience / std::chrono::seconds(1)}});
  }
  interrupt({.kind = Reason::Kind::kInterrupted, .count = e.signal}, 128 + e.signal);
}

// What was waited for has come, or will not.
void Shutdown::receive(const wire::Snapshot& m) {
  if (m.word == wire::SnapshotWord::kStop) {
    if (job_.is_ending() || job_.state == State::kDone) return;
    is_saved_ = !m.name.empty();
    return interrupt({.kind = Reason::Kind::kStopped}, kTerminated);
  }
  if (snapshot_pause_ == 0 || job_.state != State::kRunning) return;
  snapshot_pause_ = 0;
  const bool is_made = is_saved_ = m.word == wire::SnapshotWord::kNamed;
  job_.emit(Say{{.kind = is_made ? Reason::Kind::kSnapshotMade : Reason::Kind::kSnapshotLacking,
                 .version = m.version,
                 .detail = is_made ? m.name : m.why}});
  interrupt({.kind = Reason::Kind::kInterrupted, .count = signal_}, 128 + signal_);
}

// A rank that stands still by order makes no snapshot, and its program could not save anything. An
// interrupted agent with places ends the job in any case.
void Shutdown::have_job_go_on() {
  if (job_.is_paused && job_.worker_places() > 0) job_.send(wire::Pause{.on = false});
}

void Shutdown::interrupt(Reason reason, std::int32_t code) {
  have_job_go_on();
  job_.enter(State::kEnding);
  result_ = {code, std::move(reason), ""};
  workers_leave_ = true;
  for (const Process process : job_.running) {
    if (!is_scheduler(process)) job_.kill(process, true);
  }
  job_.emit(WantGrace{});
}

void Shutdown::say_interrupted() {
  workers_leave_ = false;
  job_.send(wire::Failed{result_.reason});
  for (const Process process : job_.running) job_.kill(process, is_scheduler(process));
  job_.emit(WantGrace{});
}

void Shutdown::fail(Exit result) {
  if (job_.is_ending()) return;
  job_.enter(State::kEnding);
  result_ = std::move(result);
  job_.send(wire::Failed{result_.reason});
  end_all(true);
  job_.emit(WantGrace{});
}

void Shutdown::fail(Exit result, Process blamed) {
  blamed_ = blamed;
  fail(std::move(result));
}

void Shutdown::explain(Process process, Exit result) {
  if (process == blamed_) result_ = std::move(result);
}

void Shutdown::repeat_failure() {
  if (result_.code != 0 && !workers_leave_) job_.send(wire::Failed{result_.reason});
}

void Shutdown::end_all(bool gently) {
  for (const Process process : job_.running) job_.kill(process, gently);
}

void Shutdown::on(const GraceOver&) {
  grace_over_ = true;
  if (workers_leave_) {
    say_interrupted();
  } else if (job_.is_ending()) {
    end_all(false);
  } else if (job_.state == State::kDone) {
    job_.enter(State::kEnding);
    end_all(false);
  } else if (!job_.workers_done() && !scheduler_runs() && options_.runs_scheduler) {
    fail({1, {.kind = Reason::Kind::kSchedulerLeft}, kSchedulerNode});
  } else if (job_.workers_done() && job_.is_local()) {
    // The scheduler does not know of workers that never asked for a rank, and would wait for them.
    job_.enter(State::kEnding);
    end_all(false);
  }
}

// The workers give up as well, and the agent would only start others.
void Shutdown::on(const OutOfReach& e) {
  if (job_.state != State::kRunning || options_.runs_scheduler || stays_) return;
  gave_up_ = true;
  fail({1, {.kind = Reason::Kind::kOutOfReach, .detail = e.why}, ""});
}

void Shutdown::receive(const wire::Refused& m) {
  gave_up_ = true;  // The scheduler does not listen to it.
  fail({1, m.reason, ""});
}

void Shutdown::receive(const wire::JobEnded& m) {
  heard_end_ = true;
  if (job_.is_ending()) return;
  if (m.success) {  // Processes end by themselves; one that hangs has its grace period.
    if (job_.state == State::kDone) return;
    job_.enter(State::kDone);
    if (job_.waits_for_places()) spares_.end_unneeded();  // No place needs the spares any more.
    job_.emit(WantGrace{});
    return;
  }
  const auto& places = job_.places;
  const auto failed = std::find_if(places.begin(), places.end(), [](const Place& p) {
    // One that was replaced is not why the job has failed.
    return p.role == Role::kWorker && p.process == 0 && p.previous != 0 && !ended_well(p.ending);
  });
  const bool known = failed != places.end();
  fail({known ? exit_code(failed->ending) : code_of(m.reason), m.reason,
        known ? failed->node_id : ""});
}

// If a process has heard of the job's end, its agent takes that for true, because the agent itself
// may be cut off (P26). A successor could only hear the same. If the job has failed, the scheduler
// may still say why.
void Shutdown::hear_of_end(const Died& e, const std::string& node_id) {
  if (!e.job_ended) return;
  heard_end_ = true;
  if (job_.state != State::kRunning) return;
  receive(wire::JobEnded{true, {}});
  if (*e.job_ended) return;
  blamed_ = e.process;
  result_ = failed(e, node_id);
}

void Shutdown::pause_over(std::uint64_t pause) {
  gave_up_ = gave_up_ || pause == last_word_;
  if (pause == echo_pause_) echo_pause_ = 0;
  if (pause != snapshot_pause_ || job_.state != State::kRunning) return;
  receive(wire::Snapshot{.word = wire::SnapshotWord::kFailed});
}

bool Shutdown::is_scheduler(Process process) const {
  return options_.runs_scheduler && job_.places.front().process == process;
}

bool Shutdown::scheduler_runs() const {
  return std::any_of(job_.places.begin(), job_.places.end(),
                     [](const Place& p) { return p.role == Role::kScheduler && p.process != 0; });
}

// Whether others still need this agent. Workers of other agents need the scheduler that it runs. If
// all ranks are here, or it is drained, it waits until the scheduler has heard how its workers
// ended: otherwise the scheduler would wait until their leases run out.
bool Shutdown::is_awaited_elsewhere() const {
  if (job_.state != State::kRunning) return false;
  if (options_.runs_scheduler) return !job_.is_local() && !job_.places.front().done;
  return (job_.is_local() || options_.drained) && !job_.are_places_told && !grace_over_;
}

// Whether this agent stays for a scheduler on another host. If all is well it stays until the job's
// end: the scheduler forgets an agent's word once the agent is gone, and may give it the places of
// a lost host. After a failure it stays because the scheduler may not have heard of that.
bool Shutdown::owes_last_word() const {
  if (job_.is_local() || job_.worker_places() == 0 || heard_end_ || gave_up_) return false;
  if (job_.is_ending()) {
    return result_.code != 0 && (!options_.runs_scheduler || options_.stands_by);
  }
  return job_.state == State::kRunning && !options_.runs_scheduler && !options_.drained;
}

// While the link is up and all is well, the agent stays without a limit: other hosts may train on.
// Otherwise it waits for a limited time, for a scheduler to come back or for the answer to its
// failure.
void Shutdown::stay() {
  if (!job_.is_ending() && job_.link == LinkState::kUp) {
    last_word_ = 0;
    return;
  }
  if (last_word_ != 0) return;
  const Duration at_most = job_.is_ending() && job_.link != LinkState::kNever ? kAnswer : kLastWord;
  last_word_ = job_.pause(at_most);
  if (job_.link != LinkState::kUp) job_.emit(Stay{result_.code, result_.reason, at_most});
}

// An interrupt is told to the scheduler once only these run: the scheduler itself, and a rehearsal.
void Shutdown::maybe_exit(Process rehearsal) {
  const auto& running = job_.running;
  const auto is_own = [&](Process process) {
    return is_scheduler(process) || process == rehearsal;
  };
  if (workers_leave_ && std::all_of(running.begin(), running.end(), is_own)) say_interrupted();
  const bool has_ended = running.empty() && (job_.is_ending() || job_.workers_done());
  stays_ = has_ended && owes_last_word();
  if (stays_) return stay();
  if (!has_ended || is_awaited_elsewhere()) return;
  result_.drained = options_.drained && job_.state == State::kRunning;
  result_.may_be_unsaved = result_.code != 0 && !is_saved_;
  job_.enter(State::kExited);
  job_.emit(result_);
}

}  // namespace holdfast::agent
