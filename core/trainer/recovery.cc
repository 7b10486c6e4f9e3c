#include "core/trainer/recovery.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/assert.h"

namespace holdfast::trainer {

using wire::Reason;

void Recovery::on(const JoinCalled& e) {
  if (!call_.begin(ProgramCall::Kind::kJoin)) return;
  HF_ASSERT(training_.state == State::kOpened);
  training_.holding = e.holding;
  if (!training_.options.solo) return park();
  training_.generation = 1;
  if (training_.holding.version != kNoVersion) {
    training_.enter(State::kGoing);
    return call_.answer(Return::What::kJoined);
  }
  repair({.generation = 1, .version = 0, .order = {.act = wire::Act::kBegin, .source = {}}});
}

// The step under way is void, so a generation is formed in which this rank gets back what it has
// lost. If it has reported already, it says that what it holds has changed.
void Recovery::on(const PagesLost& e) {
  Holding& holding = training_.holding;
  if (e.holding.version == holding.version) holding.staged = e.holding.staged;
  holding.held = e.holding.held;
  holding.has_lost_shared = e.holding.has_lost_shared;
  holding.has_lost_private = e.holding.has_lost_private;
  training_.pages_lost += e.pages;
  if (is_at_rest()) return report();
  if (e.pages > 0 && training_.generation > 0 && !training_.stopped()) group_.say_lost();
}

// ---- Stop and report ----------------------------------------------------------------------------

void Recovery::on(const Assigned& e) {
  const wire::Assignment& m = e.part;
  if (e.is_first) end_.repeat();
  // A rank that has missed the stop of a newer generation stops for it first.
  if (m.stage == wire::Stage::kStopping || m.generation > training_.stopped_for) {
    stop(m.generation);
  }
  step_.hear(m.pauses, e.is_first);
  const bool is_order = m.stage == wire::Stage::kRepairing
                            ? m.order.act != wire::Act::kKeep
                            : m.stage == wire::Stage::kRunning && e.peers != nullptr;
  if (!is_order || !is_at_rest()) return;
  if (m.generation != training_.stopped_for || m.generation <= training_.generation) return;
  order_ = e;
  rest();
}

void Recovery::stop(Generation generation) {
  // Nothing is left to stop.
  if (generation < training_.stopped_for || generation <= training_.generation) return;
  training_.stopped_for = generation;
  order_.reset();
  if (is_at_rest()) return report();
  const State state = training_.state;
  if (state == State::kRepairing) return training_.emit(StopRepair{});
  const bool trains = state != State::kOpened && state != State::kEnding && state != State::kOver;
  if (trains) training_.stop_group();
}

void Recovery::on(const GroupStopped& e) {
  if (!training_.stopped()) return;
  if (training_.state == State::kUncertain || training_.state == State::kHeld) {
    if (e.idle) say_parked();
    return group_.leave(e.idle);
  }
  if (e.idle) speak();
}

void Recovery::on(const SumsIdle&) {
  if (training_.stopped()) speak();
}

// Reports for the training thread, which waits and touches nothing. Otherwise all other ranks would
// wait until that thread gets a processor.
void Recovery::speak() {
  const State state = training_.state;
  const bool waits =
      state == State::kSumming || state == State::kExchanging || state == State::kArriving;
  if (!waits) return;
  if (!training_.options.protect) return;  // The training thread says why it can not go on.
  training_.enter(State::kSpokenFor);
  say_parked();
}

void Recovery::on(const LeftGroup&) {
  HF_ASSERT(training_.state == State::kLeaving);
  if (!group_.has_reported()) return park();
  training_.enter(State::kParked);
  rest();
}

void Recovery::park() {
  training_.enter(State::kParked);
  say_parked();
  rest();
}

void Recovery::say_parked() {
  training_.emit(NoteParked{training_.holding, training_.generation, call_.called_at()});
  if (training_.stopped_for > training_.generation) report();
}

void Recovery::report() {
  const Holding& holding = training_.holding;
  training_.say(wire::Report{training_.stopped_for, holding.version, holding.staged,
                             holding.private_is_own, holding.held, holding.has_lost_shared,
                             holding.has_lost_private});
}

// Whether nothing changes what the rank holds before an order comes, except copies of wards that
// still arrive.
bool Recovery::is_at_rest() const {
  const State state = training_.state;
  return state == State::kParked || state == State::kSpokenFor ||
         (state == State::kLeaving && group_.has_reported());
}

// ---- Repair and go on ---------------------------------------------------------------------------

// While the training thread waits for others, it takes in what has come before: the end, or an
// order.
void Recovery::rest() {
  if (end_.cuts_wait_short()) return;
  if (training_.state == State::kParked && order_) carry_out(*std::exchange(order_, std::nullopt));
}

void Recovery::carry_out(const Assigned& order) {
  const wire::Assignment& m = order.part;
  if (m.stage == wire::Stage::kRunning) return go(order);
  // The first answer was lost.
  if (repaired_.generation == m.generation) return training_.say(repaired_);
  repair({m.generation, m.version, m.order});
}

void Recovery::repair(Repair work) {
  repair_ = std::move(work);
  training_.enter(State::kRepairing);
  training_.work(repair_);
}

void Recovery::on(const Repaired& e) {
  HF_ASSERT(training_.state == State::kRepairing);
  training_.holding = e.holding;
  if (!e.too_late && !e.error.empty() && repair_.order.act == wire::Act::kLoad) {
    return say_unreadable(e.error);
  }
  if (!e.too_late && (!e.error.empty() || e.holding.version != repair_.version)) {
    return call_.fail({.kind = Reason::Kind::kNotRepaired,
                       .count = static_cast<std::int64_t>(repair_.order.act),
                       .version = repair_.version,
                       .detail = e.error});
  }
  if (training_.options.solo) {
    training_.enter(State::kGoing);
    return call_.answer(Return::What::kJoined);
  }
  training_.enter(State::kParked);
  repaired_ = {repair_.generation, e.bytes, e.is_of_pages};
  if (repaired_.generation == training_.stopped_for) {
    training_.say(repaired_);
  } else {
    report();
  }
  rest();
}

// There may be an older snapshot, so the job need not end.
void Recovery::say_unreadable(const std::string& why) {
  training_.enter(State::kParked);
  training_.say(wire::Snapshot{.word = wire::SnapshotWord::kUnreadable,
                               .generation = repair_.generation,
                               .version = repair_.version,
                               .name = repair_.order.snapshot,
                               .why = wire::sentence(why)});
  if (repair_.generation < training_.stopped_for) report();
  rest();
}

void Recovery::go(const Assigned& order) {
  const Version version = order.part.version;
  const Holding& holding = training_.holding;
  if (version != training_.holding.version) {
    // A rank must never train from another version than the others: better no job than wrong bits.
    return call_.fail({.kind = Reason::Kind::kWrongVersion,
                       .count = static_cast<std::int64_t>(version),
                       .version = training_.holding.version});
  }
  unstage();
  training_.generation = order.part.generation;
  // What was lost after the report has to be got back yet.
  if (!holding.has_lost_shared && !holding.has_lost_private) training_.pages_lost = 0;
  group_.go_on(order.part.ended);
  training_.emit(Resume{training_.generation, version, order.part.ended, order.peers});
  if (training_.generation > 1 && !training_.options.protect) {
    return call_.fail({.kind = Reason::Kind::kUnprotected, .version = version});
  }
  if (call_.kind() == ProgramCall::Kind::kBeginStep) return group_.form();
  training_.enter(State::kGoing);
  if (call_.kind() == ProgramCall::Kind::kJoin) return call_.answer(Return::What::kJoined);
  // The plan may have finished the step, since all had staged it.
  call_.answer(version == step_.target() ? Return::What::kCommittedByPlan : Return::What::kVoid);
}

// The plan has made the staged step void.
void Recovery::unstage() {
  Holding& holding = training_.holding;
  const auto is_void = [&](const auto& copy) { return copy.staged == holding.version + 1; };
  const bool any = std::any_of(holding.held.begin(), holding.held.end(), is_void);
  if (any || holding.staged != holding.version) training_.work(Unstage{});
  holding.staged = holding.version;
  for (auto& copy : holding.held) {
    if (is_void(copy)) copy.staged = copy.version;
  }
}

}  // namespace holdfast::trainer
