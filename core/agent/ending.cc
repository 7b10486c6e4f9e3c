// How an agent ends, and what it waits for before.
#include <algorithm>
#include <utility>

#include "core/agent/machine.h"

namespace holdfast::agent {

using wire::Reason;

// A program may save what it has at the signal, at the end of its step. So nobody hears of it
// before the workers have ended, or their grace is over.
void Machine::on(const Interrupted& e) {
  if (workers_leave_) return say_interrupted();
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
    // Workers that never asked for their rank are unknown to the scheduler: it would wait on.
    enter(State::kEnding);
    end_all(false);
  }
}

// Its workers give up as well. It would only start others.
void Machine::on(const OutOfReach& e) {
  if (state_ != State::kRunning || options_.runs_scheduler) return;
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

// Whether others still need this agent. A scheduler that has not heard how its workers ended would
// wait until their leases run out. And the workers of other agents need the scheduler that it runs.
bool Machine::is_awaited_elsewhere() const {
  if (!options_.runs_scheduler) return !told_ && !grace_over_;
  return !is_local() && !places_.front().done;
}

void Machine::maybe_exit() {
  const auto is_its = [&](Process process) { return is_scheduler(process); };
  if (workers_leave_ && std::all_of(running_.begin(), running_.end(), is_its)) say_interrupted();
  if (state_ == State::kExited || !running_.empty()) return;
  if (!is_ending() && !workers_done()) return;
  if (state_ == State::kRunning && is_awaited_elsewhere()) return;
  result_.drained = options_.drained && state_ == State::kRunning;
  enter(State::kExited);
  actions_.push_back(result_);
}

}  // namespace holdfast::agent
