#include "collective/progress.h"

#include <utility>

#include "base/assert.h"

namespace holdfast::collective {

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  thread_.join();
}

Ticket Progress::start(Operation operation) {
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  work_.notify_one();
  return Ticket{++started_};
}

Ticket Progress::start_ended(Outcome failure) {
  const std::lock_guard lock(mutex_);
  HF_ASSERT(ended_ == started_ && failure != Outcome::kDone);
  ++started_;
  end_one(failure);
  return Ticket{started_};
}

Outcome Progress::wait(Ticket ticket) {
  const auto number = static_cast<std::uint64_t>(ticket);
  std::unique_lock lock(mutex_);
  HF_ASSERT(number >= 1 && number <= started_);
  wait_for(lock, number);
  return number < failed_from_ ? Outcome::kDone : failure_;
}

void Progress::drain() {
  if (started_ == 0) return;
  std::unique_lock lock(mutex_);
  wait_for(lock, started_);
}

bool Progress::is_idle() const {
  const std::lock_guard lock(mutex_);
  return ended_ == started_;
}

void Progress::wait_for(std::unique_lock<std::mutex>& lock, std::uint64_t number) {
  progress_.wait(lock, [&] { return ended_ >= number; });
}

// Everything that was started is run, also when stopping.
void Progress::run() {
  if (on_start_) on_start_();
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Operation operation = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const Outcome outcome = operation();
    lock.lock();
    end_one(outcome);
    progress_.notify_all();
    if (failure_ == Outcome::kDone || !queue_.empty() || !on_failed_) continue;
    lock.unlock();
    on_failed_();
    lock.lock();
  }
}

void Progress::end_one(Outcome outcome) {
  ++ended_;
  if (outcome == Outcome::kDone || failure_ != Outcome::kDone) return;
  failed_from_ = ended_;
  failure_ = outcome;
}

}  // namespace holdfast::collective
