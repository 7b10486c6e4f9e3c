#include "core/trainer/machine.h"

#include <algorithm>

#include "base/assert.h"

namespace holdfast::trainer {

using wire::Reason;

namespace {

template <class E>
constexpr std::size_t kEvent = event_index<Event, E>();

using S = State;
using Row = Transition<State>;

constexpr Row kTransitions[] = {
    {S::kOpened, kEvent<JoinCalled>, S::kParked},
    {S::kOpened, kEvent<JoinCalled>, S::kRepairing, "alone, with nothing in its arena"},
    {S::kOpened, kEvent<JoinCalled>, S::kGoing, "alone"},
    {S::kRepairing, kEvent<Repaired>, S::kGoing, "alone"},
    {S::kParked, kEvent<Assigned>, S::kRepairing, "an order, at the start or after a fault"},
    {S::kRepairing, kEvent<Repaired>, S::kParked},
    {S::kParked, kEvent<Assigned>, S::kGoing, "its generation is running"},
    {S::kParked, kEvent<Assigned>, S::kForming, "the same, and it was called to begin a step"},
    {S::kGoing, kEvent<StepBegun>, S::kForming},
    {S::kGoing, kEvent<StepBegun>, S::kLeaving, "its generation was aborted meanwhile"},
    {S::kForming, kEvent<Formed>, S::kStepping},
    {S::kForming, kEvent<Formed>, S::kUncertain, "somebody has ended the group already"},
    {S::kForming, kEvent<Formed>, S::kLeaving, "its generation was aborted meanwhile"},
    {S::kForming, kEvent<NotFormed>, S::kUncertain},
    {S::kForming, kEvent<NotFormed>, S::kLeaving, "its generation was aborted"},
    {S::kStepping, kEvent<StepBegun>, S::kUncertain, "somebody has ended the group"},
    {S::kStepping, kEvent<StepBegun>, S::kLeaving, "and its generation was aborted"},
    {S::kStepping, kEvent<StepEnded>, S::kSumming},
    {S::kSumming, kEvent<SumsDone>, S::kStaging},
    {S::kSumming, kEvent<SumsDone>, S::kUncertain, "a fault came"},
    {S::kSumming, kEvent<SumsDone>, S::kLeaving, "a fault came, and its generation was aborted"},
    {S::kSumming, kEvent<GroupStopped>, S::kSpokenFor},
    {S::kSumming, kEvent<SumsIdle>, S::kSpokenFor},
    {S::kStaging, kEvent<Staged>, S::kArriving},
    {S::kStaging, kEvent<Staged>, S::kExchanging, "private parts have holders on other hosts"},
    {S::kStaging, kEvent<Staged>, S::kUpdating, "unprotected: without a barrier"},
    {S::kExchanging, kEvent<CopiesExchanged>, S::kArriving},
    {S::kExchanging, kEvent<CopiesExchanged>, S::kUncertain, "a fault came"},
    {S::kExchanging, kEvent<CopiesExchanged>, S::kLeaving,
     "a fault came, and its generation was aborted"},
    {S::kExchanging, kEvent<GroupStopped>, S::kSpokenFor},
    {S::kExchanging, kEvent<SumsIdle>, S::kSpokenFor},
    {S::kArriving, kEvent<Arrived>, S::kUpdating},
    {S::kArriving, kEvent<Arrived>, S::kUncertain, "a fault came"},
    {S::kArriving, kEvent<Arrived>, S::kLeaving, "a fault came, and its generation was aborted"},
    {S::kArriving, kEvent<GroupStopped>, S::kSpokenFor},
    {S::kArriving, kEvent<SumsIdle>, S::kSpokenFor},
    {S::kUpdating, kEvent<Updated>, S::kStepping},
    {S::kSpokenFor, kEvent<SumsDone>, S::kLeaving},
    {S::kSpokenFor, kEvent<CopiesExchanged>, S::kLeaving},
    {S::kSpokenFor, kEvent<Arrived>, S::kLeaving},
    {S::kUncertain, kEvent<GroupStopped>, S::kLeaving},
    {S::kLeaving, kEvent<LeftGroup>, S::kParked},
    {S::kLeaving, kEvent<LeftGroup>, S::kRepairing, "the order had come before"},
    {S::kLeaving, kEvent<LeftGroup>, S::kGoing, "the same"},
    {S::kLeaving, kEvent<LeftGroup>, S::kForming, "the same, and it was called to begin a step"},
    {S::kOpened, kEvent<EndCalled>, S::kEnding, "it never trained"},
    {S::kGoing, kEvent<EndCalled>, S::kEnding},
    {S::kStepping, kEvent<EndCalled>, S::kEnding},
    {S::kEnding, kEvent<Released>, S::kOver},
};

// Any event that ends the job may lead to kOver, from any state: the table does not list these.
constexpr bool is_end(State next) {
  return next == State::kOver;
}

}  // namespace

std::span<const Transition<State>> transitions() {
  return kTransitions;
}

const char* name(State state) {
  constexpr const char* kNames[kStates] = {"opened",     "parked",   "repairing", "going",
                                           "forming",    "stepping", "summing",   "staging",
                                           "exchanging", "arriving", "updating",  "spoken for",
                                           "uncertain",  "leaving",  "ending",    "over"};
  return kNames[static_cast<std::size_t>(state)];
}

Actions Machine::step(Instant now, const Event& event) {
  now_ = now;
  event_ = event.index();
  from_ = state_;
  std::visit([&](const auto& e) { on(e); }, event);
  return std::exchange(actions_, {});
}

void Machine::enter(State next) {
  HF_ASSERT(is_end(next) || next == state_ || is_listed<State>(kTransitions, from_, event_, next));
  state_ = next;
}

void Machine::back(Return::What what) {
  back(Return{.what = what});
}

void Machine::back(Return result) {
  call_ = Call::kNone;
  deadline_.reset();
  work(std::move(result));
}

// Every later call gets the same answer.
void Machine::finish(Return result) {
  enter(State::kOver);
  final_ = result;
  back(std::move(result));
}

void Machine::fail(Reason reason) {
  if (over_) return end_over(over_->reason);
  finish(Return{.what = Return::What::kFailed, .reason = std::move(reason)});
}

void Machine::end_over(Reason reason) {
  finish(Return{.what = Return::What::kOver, .reason = std::move(reason)});
}

// ---- The program calls --------------------------------------------------------------------------

void Machine::on(const JoinCalled& e) {
  if (is_over()) return;
  HF_ASSERT(state_ == State::kOpened);
  call_ = Call::kJoin;
  called_at_ = now_;
  holding_ = e.holding;
  if (!options_.solo) return park();
  generation_ = 1;
  if (holding_.version != kNoVersion) {
    enter(State::kGoing);
    return back(Return::What::kJoined);
  }
  repair_ = {.generation = 1, .version = 0, .order = {.act = wire::Act::kBegin, .source = {}}};
  enter(State::kRepairing);
  work(repair_);
}

void Machine::on(const StepBegun& e) {
  if (is_over()) return;
  HF_ASSERT(state_ == State::kGoing || state_ == State::kStepping);
  call_ = Call::kBeginStep;
  called_at_ = now_;
  reformed_ = false;
  if (state_ == State::kStepping && !e.group_ended) return back(Return::What::kBegun);
  if (state_ == State::kGoing && !stopped()) return form();
  lose_group(options_.replacement_timeout);
}

void Machine::on(const StepEnded& e) {
  if (is_over()) return;
  HF_ASSERT(state_ == State::kStepping);
  call_ = Call::kEndStep;
  called_at_ = now_;
  target_ = holding_.version + 1;
  loss_ = e.loss;
  enter(State::kSumming);
  work(AwaitSums{});
}

void Machine::on(const EndCalled&) {
  if (is_over()) return;
  call_ = Call::kEnd;
  if (options_.solo) return finish(Return{.what = Return::What::kEnded});
  const bool trained = state_ != State::kOpened;
  enter(State::kEnding);
  deadline_ = now_ + options_.scheduler_timeout;
  finished_ = wire::Finished{generation_, trained ? holding_.version : kNoVersion};
  say(*finished_);
  rest();
}

// A program that calls again after the end gets the same answer.
bool Machine::is_over() {
  if (state_ != State::kOver) return false;
  work(*final_);
  return true;
}

// ---- Forming a group ----------------------------------------------------------------------------

void Machine::form() {
  if (ended_ != kNoRank) {
    enter(State::kGoing);
    return back(Return{.what = Return::What::kTooLate, .ended = ended_});
  }
  enter(State::kForming);
  work(JoinGroup{generation_});
}

void Machine::on(const Formed& e) {
  linked_ = e.linked;
  exchanges_ = e.exchanges;
  holding_.held = e.held;
  if (e.ended || stopped()) return lose_group(options_.replacement_timeout);
  enter(State::kStepping);
  back(reformed_ ? Return::What::kBegunAnew : Return::What::kBegun);
}

// If a fault is the cause, the scheduler says so soon.
void Machine::on(const NotFormed& e) {
  if (options_.solo || e.mistaken) {
    return fail({.kind = Reason::Kind::kNotFormed, .detail = e.why});
  }
  linked_ = e.linked;
  holding_.held = e.held;
  not_formed_ = e.why;
  lose_group(options_.forming_patience);
}

// ---- A step -------------------------------------------------------------------------------------

void Machine::on(const SumsDone& e) {
  if (state_ == State::kSpokenFor) return leave(true);
  HF_ASSERT(state_ == State::kSumming);
  if (e.outcome != Outcome::kDone) return met(e.outcome, e.why);
  enter(State::kStaging);
  work(Stage{target_});
}

void Machine::on(const Staged&) {
  HF_ASSERT(state_ == State::kStaging);
  holding_.staged = target_;
  if (!options_.protect) return update();
  if (!exchanges_) return arrive();
  enter(State::kExchanging);
  work(ExchangeCopies{target_});
}

// A holder has the step of its wards before it arrives at the barrier. So once the barrier is
// complete anywhere, the step is on two hosts.
void Machine::on(const CopiesExchanged& e) {
  holding_.held = e.held;
  if (state_ == State::kSpokenFor) return leave(true);
  HF_ASSERT(state_ == State::kExchanging);
  if (e.outcome != Outcome::kDone) return met(e.outcome, "");
  arrive();
}

void Machine::arrive() {
  enter(State::kArriving);
  work(Arrive{});
}

// If the barrier is complete, every rank has staged the step: any arena can finish it.
void Machine::on(const Arrived& e) {
  // The plan decides on the step, even if the barrier was complete.
  if (state_ == State::kSpokenFor) return leave(true);
  HF_ASSERT(state_ == State::kArriving);
  if (e.outcome != Outcome::kDone) return met(e.outcome, e.why);
  update();
}

void Machine::update() {
  enter(State::kUpdating);
  work(Update{});
}

void Machine::on(const Updated&) {
  HF_ASSERT(state_ == State::kUpdating);
  holding_.version = holding_.staged = target_;
  // Copies that are held for others and lack this step are of no use any more.
  std::erase_if(holding_.held, [&](const auto& copy) { return copy.staged != target_; });
  for (auto& copy : holding_.held) copy.version = target_;
  enter(State::kStepping);
  if (told_generation_ != generation_ || now_ - told_at_ >= options_.progress_interval) {
    told_generation_ = generation_;
    told_at_ = now_;
    say(wire::Progress{generation_, target_, loss_});
  }
  back(Return::What::kCommitted);
}

void Machine::met(Outcome outcome, const std::string& why) {
  if (outcome == Outcome::kRefused) {
    return fail({.kind = Reason::Kind::kNotTheSame, .detail = why});
  }
  lose_group(options_.replacement_timeout);
}

// ---- A fault ------------------------------------------------------------------------------------

// The group has ended, or was never formed. Until the scheduler has stopped this generation, the
// cause is unknown.
void Machine::lose_group(Duration patience) {
  reformed_ = true;
  // There is no step to go back to. This is said now, because a plan would give another reason.
  if (!options_.protect && !options_.solo) {
    return fail({.kind = Reason::Kind::kUnprotected, .version = holding_.version});
  }
  if (stopped()) return leave(false);
  enter(State::kUncertain);
  deadline_ = now_ + patience;
  gives_up_at_.reset();
  if (linked_) {
    gives_up_at_ = deadline_;
    deadline_ = std::min(*deadline_, now_ + options_.link_patience);
  }
  rest();
}

// `said`: the report is made already.
void Machine::leave(bool said) {
  said_ = said;
  deadline_.reset();
  gives_up_at_.reset();
  not_formed_.clear();
  enter(State::kLeaving);
  work(LeaveGroup{});
}

void Machine::on(const LeftGroup&) {
  HF_ASSERT(state_ == State::kLeaving);
  if (!said_) return park();
  enter(State::kParked);
  rest();
}

void Machine::park() {
  enter(State::kParked);
  say_parked();
  rest();
}

void Machine::say_parked() {
  actions_.push_back(NoteParked{holding_, generation_, called_at_});
  if (stopped_for_ > generation_) report();
}

void Machine::report() {
  say(wire::Report{stopped_for_, holding_.version, holding_.staged, holding_.private_is_own,
                   holding_.held});
}

// Whether nothing changes what the rank holds before an order comes, except copies of wards that
// still arrive.
bool Machine::is_at_rest() const {
  return state_ == State::kParked || state_ == State::kSpokenFor ||
         (state_ == State::kLeaving && said_);
}

void Machine::on(const Assigned& e) {
  const wire::Assignment& m = e.part;
  if (e.is_first && finished_) say(*finished_);
  // A rank that has missed the stop of a newer generation stops for it first.
  if (m.stage == wire::Stage::kStopping || m.generation > stopped_for_) stop(m.generation);
  const bool is_order = m.stage == wire::Stage::kRepairing
                            ? m.order.act != wire::Act::kKeep
                            : m.stage == wire::Stage::kRunning && e.peers != nullptr;
  if (!is_order || !is_at_rest()) return;
  if (m.generation != stopped_for_ || m.generation <= generation_) return;
  order_ = e;
  rest();
}

void Machine::stop(Generation generation) {
  if (generation < stopped_for_ || generation <= generation_) return;  // Nothing is left to stop.
  stopped_for_ = generation;
  order_.reset();
  if (is_at_rest()) return report();
  if (state_ == State::kRepairing) return actions_.push_back(StopRepair{});
  const bool trains =
      state_ != State::kOpened && state_ != State::kEnding && state_ != State::kOver;
  if (trains) stop_group();
}

void Machine::stop_group() {
  actions_.push_back(StopGroup{generation_});
  actions_.push_back(NoteStopped{generation_});
}

void Machine::on(const GroupStopped& e) {
  if (!stopped()) return;
  if (state_ == State::kUncertain) {
    if (e.idle) say_parked();
    return leave(e.idle);
  }
  if (e.idle) speak();
}

void Machine::on(const SumsIdle&) {
  if (stopped()) speak();
}

// Reports for the training thread, which waits and touches nothing. Otherwise all other ranks would
// wait until that thread gets a processor.
void Machine::speak() {
  const bool waits =
      state_ == State::kSumming || state_ == State::kExchanging || state_ == State::kArriving;
  if (!waits) return;
  if (!options_.protect) return;  // The training thread says why it can not go on.
  enter(State::kSpokenFor);
  say_parked();
}

void Machine::carry_out(const Assigned& order) {
  const wire::Assignment& m = order.part;
  if (m.stage == wire::Stage::kRunning) return go(order);
  // The first answer was lost.
  if (repaired_for_ == m.generation) return say(wire::Repaired{m.generation});
  repair_ = {m.generation, m.version, m.order};
  enter(State::kRepairing);
  work(repair_);
}

void Machine::on(const Repaired& e) {
  HF_ASSERT(state_ == State::kRepairing);
  holding_ = e.holding;
  if (!e.too_late && (!e.error.empty() || holding_.version != repair_.version)) {
    return fail({.kind = Reason::Kind::kNotRepaired,
                 .count = static_cast<std::int64_t>(repair_.order.act),
                 .version = repair_.version,
                 .detail = e.error});
  }
  if (options_.solo) {
    enter(State::kGoing);
    return back(Return::What::kJoined);
  }
  enter(State::kParked);
  repaired_for_ = repair_.generation;
  if (repaired_for_ == stopped_for_) {
    say(wire::Repaired{repaired_for_});
  } else {
    report();
  }
  rest();
}

void Machine::go(const Assigned& order) {
  const Version version = order.part.version;
  if (version != holding_.version) {
    // A rank must never train from another version than the others: better no job than wrong bits.
    return fail({.kind = Reason::Kind::kWrongVersion,
                 .count = static_cast<std::int64_t>(version),
                 .version = holding_.version});
  }
  const auto is_void = [&](const auto& copy) { return copy.staged == version + 1; };
  const bool any = std::any_of(holding_.held.begin(), holding_.held.end(), is_void);
  if (any || holding_.staged != holding_.version) work(Unstage{});
  holding_.staged = holding_.version;
  for (auto& copy : holding_.held) {
    if (is_void(copy)) copy.staged = copy.version;
  }
  generation_ = order.part.generation;
  ended_ = order.part.ended;
  actions_.push_back(Resume{generation_, version, ended_, order.peers});
  if (generation_ > 1 && !options_.protect) {
    return fail({.kind = Reason::Kind::kUnprotected, .version = holding_.version});
  }
  if (call_ == Call::kBeginStep) return form();
  enter(State::kGoing);
  if (call_ == Call::kJoin) return back(Return::What::kJoined);
  // The plan may have finished the step, since all had staged it.
  back(holding_.version == target_ ? Return::What::kCommittedByPlan : Return::What::kVoid);
}

// ---- Waits --------------------------------------------------------------------------------------

// While the training thread waits for others, it takes in what has come before: the job's end, the
// loss of the scheduler, or an order.
void Machine::rest() {
  const bool waits =
      state_ == State::kParked || state_ == State::kUncertain || state_ == State::kEnding;
  if (!waits) return;
  if (over_) {
    const bool ended = over_->success && state_ == State::kEnding;
    return ended ? finish(Return{.what = Return::What::kEnded}) : end_over(over_->reason);
  }
  if (unreachable_) return end_over(*unreachable_);
  if (state_ == State::kParked && order_) carry_out(*std::exchange(order_, std::nullopt));
}

void Machine::on(const Released&) {
  if (state_ != State::kEnding) return;
  finish(Return{.what = Return::What::kEnded});
}

void Machine::on(const JobOver& e) {
  if (!over_) over_ = e;
  stop_group();
  rest();
}

// Without a scheduler nobody could tell this rank of a peer's death, so it waits for its peers no
// longer (P38).
void Machine::on(const OutOfReach& e) {
  unreachable_ = e.reason;
  const bool in_group = state_ == State::kForming || state_ == State::kStepping ||
                        state_ == State::kSumming || state_ == State::kExchanging ||
                        state_ == State::kArriving;
  if (in_group && now_ - called_at_ >= options_.replacement_timeout) {
    actions_.push_back(StopGroup{generation_});
  }
  rest();
}

void Machine::on(const TimePassed&) {
  if (!deadline_ || now_ < *deadline_) return;
  if (state_ == State::kEnding) return finish(Return{.what = Return::What::kEndUnconfirmed});
  if (gives_up_at_ && now_ < *gives_up_at_) {  // Repeated, since it may get lost.
    deadline_ = std::min(*gives_up_at_, now_ + options_.link_patience);
    return say(wire::GroupLost{generation_});
  }
  if (!not_formed_.empty()) return fail({.kind = Reason::Kind::kNotFormed, .detail = not_formed_});
  end_over({.kind = Reason::Kind::kNoCause});
}

}  // namespace holdfast::trainer
