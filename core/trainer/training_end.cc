#include "core/trainer/training_end.h"

namespace holdfast::trainer {

void TrainingEnd::on(const EndCalled&) {
  if (!call_.begin(ProgramCall::Kind::kEnd)) return;
  if (training_.options.solo) return call_.finish(Return{.what = Return::What::kEnded});
  const bool trained = training_.state != State::kOpened;
  training_.enter(State::kEnding);
  training_.deadline = training_.now + training_.options.scheduler_timeout;
  finished_ =
      wire::Finished{training_.generation, trained ? training_.holding.version : kNoVersion};
  training_.say(*finished_);
  cuts_wait_short();
}

void TrainingEnd::repeat() {
  if (finished_) training_.say(*finished_);
}

void TrainingEnd::on(const Released&) {
  if (training_.state != State::kEnding) return;
  call_.finish(Return{.what = Return::What::kEnded});
}

void TrainingEnd::on(const JobOver& e) {
  if (!training_.over) training_.over = e;
  training_.stop_group();
  cuts_wait_short();
}

// Without a scheduler nobody could tell this rank of a peer's death, so it waits for its peers no
// longer (P38).
void TrainingEnd::on(const OutOfReach& e) {
  unreachable_ = e.reason;
  const State state = training_.state;
  const bool in_group = state == State::kForming || state == State::kStepping ||
                        state == State::kSumming || state == State::kExchanging ||
                        state == State::kArriving;
  const Duration waited = training_.now - call_.called_at();
  if (in_group && waited >= training_.options.replacement_timeout) {
    training_.emit(StopGroup{training_.generation});
  }
  cuts_wait_short();
}

bool TrainingEnd::cuts_wait_short() {
  const State state = training_.state;
  const bool waits = state == State::kParked || state == State::kUncertain ||
                     state == State::kEnding ||
                     state == State::kHeld;  // Nobody else would release it.
  const auto& over = training_.over;
  if (!waits || (!over && !unreachable_)) return false;
  if (!over) {
    call_.end_over(*unreachable_);
  } else if (over->success && (state == State::kEnding || training_.options.serves)) {
    call_.finish(Return{.what = Return::What::kEnded});
  } else {
    call_.end_over(over->reason);
  }
  return true;
}

}  // namespace holdfast::trainer
