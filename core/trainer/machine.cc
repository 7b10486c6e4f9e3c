#include "core/trainer/machine.h"

#include <utility>

namespace holdfast::trainer {

Actions Machine::step(Instant now, const Event& event) {
  training_.now = now;
  training_.event = event.index();
  training_.from = training_.state;
  std::visit([&](const auto& e) { on(e); }, event);
  return std::exchange(training_.actions, {});
}

void Machine::on(const TimePassed&) {
  if (!training_.deadline || training_.now < *training_.deadline) return;
  if (training_.state == State::kEnding) {
    return call_.finish(Return{.what = Return::What::kEndUnconfirmed});
  }
  group_.deadline_passed();
}

}  // namespace holdfast::trainer
