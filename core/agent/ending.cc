// How an agent ends, and what it waits for before.
#include <algorithm>
#include <utility>

#include "core/agent/machine.h"

namespace holdfast::agent {

using wire::Reason;

// A program may save its state on the signal, at the end of its step. So the scheduler does not
// hear of the interruption before the workers have ended, or their grace period is over.
void Machine::on(const Interrupted& e) {
  if (workers_leave_) return say_interrupted();
  if (stays_) {
    gave_up_ = true;
    return;
  }
  if (is_ending()) return end_all(false);
  enter(State::kEnding);
  result_ = {128 + e.signal, {.kind = Reason::Kind::kInterrupted, .count = e.signal}, ""};
  workers_leave_ = true;
  for (const Process process : running_) {
    if (!is_scheduler(process)) actions_.push_back(Kill{process, true});
  }
  actions_.push_back(WantGrace{});
}

void Machine::say_interrupted() {
  workers_leave_ = false;
  send(wire::Failed{result_.reason});
  for (const Process process : running_) actions_.push_back(Kill{process, is_scheduler(process)});
  actions_.push_back(WantGrace{});
}

void Machine::fail(Exit result) {
  if (is_ending()) return;
  enter(State::kEnding);
  result_ = std::move(result);
  send(wire::Failed{result_.reason});
  end_all(true);
  actions_.push_back(WantGrace{});
}

void Machine::end_all(bool gently) {
  for (const Process process : running_) actions_.push_back(Kill{process, gently});
}

void Machine::on(const GraceOver&) {
  grace_over_ = true;
  if (workers_leave_) {
    say_interrupted();
  } else if (is_ending()) {
    end_all(false);
  } else if (state_ == State::kDone) {
    enter(State::kEnding);
    end_all(false);
  } else if (!workers_done() && !scheduler_runs() && options_.runs_scheduler) {
    fail({1, {.kind = Reason::Kind::kSchedulerLeft}, kSchedulerNode});
  } else if (workers_done() && is_local()) {
    // The scheduler does not know of workers that never asked for a rank, and would wait for them.
    enter(State::kEnding);
    end_all(false);
  }
}

// The workers give up as well, and the agent would only start others.
void Machine::on(const OutOfReach& e) {
  if (state_ != State::kRunning || options_.runs_scheduler || stays_) return;
  gave_up_ = true;
  fail({1, {.kind = Reason::Kind::kOutOfReach, .detail = e.why}, ""});
}

bool Machine::workers_done() const {
  if (waits_for_places() && state_ == State::kRunning) return false;
  return std::all_of(places_.begin(), places_.end(),
                     [](const Place& p) { return p.role != Role::kWorker || p.done; });
}

bool Machine::is_scheduler(Process process) const {
  return options_.runs_scheduler && places_.front().process == process;
}

bool Machine::scheduler_runs() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const Place& p) { return p.role == Role::kScheduler && p.process != 0; });
}

// Whether others still need this agent. Workers of other agents need the scheduler that it runs. If
// all ranks are here, or it is drained, it waits until the scheduler has heard how its workers
// ended: otherwise the scheduler would wait until their leases run out.
bool Machine::is_awaited_elsewhere() const {
  if (state_ != State::kRunning) return false;
  if (options_.runs_scheduler) return !is_local() && !places_.front().done;
  return (is_local() || options_.drained) && !told_ && !grace_over_;
}

// Whether this agent stays for a scheduler on another host. If all is well it stays until the job's
// end: the scheduler forgets an agent's word once the agent is gone, and may give it the places of
// a lost host. After a failure it stays because the scheduler may not have heard of that.
bool Machine::owes_last_word() const {
  if (is_local() || worker_places() == 0 || heard_end_ || gave_up_) return false;
  if (is_ending()) return result_.code != 0 && (!options_.runs_scheduler || options_.stands_by);
  return state_ == State::kRunning && !options_.runs_scheduler && !options_.drained;
}

// While the link is up and all is well, the agent stays without a limit: other hosts may train on.
// Otherwise it waits for a limited time, for a scheduler to come back or for the answer to its
// failure.
void Machine::stay() {
  if (!is_ending() && link_ == Link::kUp) {
    last_word_ = 0;
    return;
  }
  if (last_word_ != 0) return;
  const Duration at_most = is_ending() && link_ != Link::kNever ? kAnswer : kLastWord;
  last_word_ = pause(at_most);
  if (link_ != Link::kUp) actions_.push_back(Stay{result_.code, result_.reason, at_most});
}

void Machine::maybe_exit() {
  const auto is_its = [&](Process process) {
    return is_scheduler(process) || process == rehearsals_.under_way();
  };
  if (workers_leave_ && std::all_of(running_.begin(), running_.end(), is_its)) say_interrupted();
  const bool has_ended = running_.empty() && (is_ending() || workers_done());
  stays_ = has_ended && owes_last_word();
  if (stays_) return stay();
  if (!has_ended || is_awaited_elsewhere()) return;
  result_.drained = options_.drained && state_ == State::kRunning;
  enter(State::kExited);
  actions_.push_back(result_);
}

}  // namespace holdfast::agent
