#include "core/trainer/program_call.h"

#include <utility>

namespace holdfast::trainer {

bool ProgramCall::begin(Kind kind) {
  if (training_.state == State::kOver) {
    training_.work(*final_);
    return false;
  }
  kind_ = kind;
  called_at_ = training_.now;
  return true;
}

void ProgramCall::answer(Return result) {
  kind_ = Kind::kNone;
  training_.deadline.reset();
  training_.work(std::move(result));
}

void ProgramCall::finish(Return result) {
  training_.enter(State::kOver);
  final_ = result;
  answer(std::move(result));
}

void ProgramCall::fail(wire::Reason reason) {
  if (training_.over) return end_over(training_.over->reason);
  finish(Return{.what = Return::What::kFailed, .reason = std::move(reason)});
}

void ProgramCall::end_over(wire::Reason reason) {
  finish(Return{.what = Return::What::kOver, .reason = std::move(reason)});
}

}  // namespace holdfast::trainer
