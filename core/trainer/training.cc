#include "core/trainer/training.h"

#include "base/assert.h"

namespace holdfast::trainer {

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
    {S::kStaging, kEvent<Staged>, S::kHeld, "the job is paused"},
    {S::kStaging, kEvent<Staged>, S::kUncertain, "it has lost pages"},
    {S::kStaging, kEvent<Staged>, S::kLeaving, "it has lost pages, and its generation was aborted"},
    {S::kExchanging, kEvent<CopiesExchanged>, S::kArriving},
    {S::kExchanging, kEvent<CopiesExchanged>, S::kUncertain, "a fault came"},
    {S::kExchanging, kEvent<CopiesExchanged>, S::kLeaving,
     "a fault came, and its generation was aborted"},
    {S::kExchanging, kEvent<CopiesExchanged>, S::kHeld, "the job is paused"},
    {S::kExchanging, kEvent<GroupStopped>, S::kSpokenFor},
    {S::kExchanging, kEvent<SumsIdle>, S::kSpokenFor},
    {S::kHeld, kEvent<Assigned>, S::kArriving, "the job goes on"},
    {S::kHeld, kEvent<Assigned>, S::kUpdating, "the same, unprotected"},
    {S::kHeld, kEvent<GroupStopped>, S::kLeaving, "a fault came, and its generation was aborted"},
    {S::kArriving, kEvent<Arrived>, S::kUpdating},
    {S::kArriving, kEvent<Arrived>, S::kUncertain, "a fault came"},
    {S::kArriving, kEvent<Arrived>, S::kLeaving, "a fault came, and its generation was aborted"},
    {S::kArriving, kEvent<GroupStopped>, S::kSpokenFor},
    {S::kArriving, kEvent<SumsIdle>, S::kSpokenFor},
    {S::kUpdating, kEvent<Updated>, S::kStepping},
    {S::kUpdating, kEvent<Updated>, S::kUncertain, "it has lost pages, perhaps of what it updated"},
    {S::kUpdating, kEvent<Updated>, S::kLeaving, "the same, and its generation was aborted"},
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
  constexpr const char* kNames[kStates] = {
      "opened",     "parked",    "repairing",  "going",  "forming",  "stepping",
      "summing",    "staging",   "exchanging", "held",   "arriving", "updating",
      "spoken for", "uncertain", "leaving",    "ending", "over"};
  return kNames[static_cast<std::size_t>(state)];
}

void Training::enter(State next) {
  HF_ASSERT(is_end(next) || next == state || is_listed<State>(kTransitions, from, event, next));
  state = next;
}

void Training::stop_group() {
  emit(StopGroup{generation});
  emit(NoteStopped{generation});
}

}  // namespace holdfast::trainer
