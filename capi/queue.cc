#include "capi/queue.h"

#include <utility>

namespace holdfast::capi {

void Work::run() {
  Verdict verdict = operation_();
  const std::lock_guard lock(mutex_);
  verdict_ = std::move(verdict);
  done_ = true;
  ended_.notify_all();
}

Verdict Work::wait(Duration limit) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return done_; };
  if (limit < Duration{0}) {
    ended_.wait(lock, done);
  } else if (!ended_.wait_for(lock, limit, done)) {
    return {HF_PENDING, {}};
  }
  return verdict_;
}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Work> Queue::start(Operation operation) {
  auto work = std::make_shared<Work>(std::move(operation));
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  waiting_.push_back(work);
  changed_.notify_all();
  return work;
}

void Queue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
}

bool Queue::is_idle() {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && !busy_;
}

void Queue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::shared_ptr<Work> work = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    work->run();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace holdfast::capi
