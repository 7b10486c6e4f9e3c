#include "runtime/worker/abort_switch.h"

#include <unistd.h>

#include <utility>

#include "os/slice.h"

namespace holdfast::runtime {

void AbortSwitch::on_stop(std::function<void(Generation)> handler) {
  const std::lock_guard lock(mutex_);
  handler_ = std::move(handler);
}

void AbortSwitch::arm() {
  const std::lock_guard lock(mutex_);
  stop_ = std::stop_source{};
}

std::stop_token AbortSwitch::token() {
  const std::lock_guard lock(mutex_);
  return stop_.get_token();
}

void AbortSwitch::hold(collective::Group* group) {
  const std::lock_guard lock(mutex_);
  group_ = group;
  if (group == nullptr) sums_thread_ = 0;
  if (group != nullptr && stop_.stop_requested()) group->abort();
}

bool AbortSwitch::stop(Generation generation) {
  const std::lock_guard lock(mutex_);
  if (handler_) handler_(generation);
  stop_.request_stop();
  // The training thread waits for this one.
  if (sums_thread_ != 0) (void)os::take_short_slice(sums_thread_);
  if (group_ == nullptr) return true;
  group_->abort();
  return group_->is_idle();
}

void AbortSwitch::begins_sums() {
  const std::lock_guard lock(mutex_);
  if (group_ != nullptr) sums_thread_ = ::gettid();
}

}  // namespace holdfast::runtime
