#include "collective/queue.h"

#include "collective/waiting.h"

namespace holdfast::collective {

Result<Verdict> Work::wait() {
  const Waiting waiting;
  const TeamWait wait(waits_);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return result_.has_value(); });
  return *result_;
}

std::optional<Result<Verdict>> Work::wait_for(Duration limit) {
  const Waiting waiting;
  const TeamWait wait(waits_);
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, limit, [&] { return result_.has_value(); });
  return result_;
}

void Work::end(Result<Verdict> result) {
  const std::lock_guard lock(mutex_);
  result_ = std::move(result);
  ended_.notify_all();
}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  started_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Work> Queue::start(Work::Body body,
                                   std::shared_ptr<std::atomic<std::uint64_t>> waits) {
  auto work = std::make_shared<Work>(std::move(body), std::move(waits));
  const std::lock_guard lock(mutex_);
  used_ = true;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  waiting_.push_back(work);
  started_.notify_one();
  return work;
}

void Queue::drain() {
  if (!used_) return;
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return waiting_.empty() && !busy_ && !telling_; });
}

bool Queue::is_idle() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && !busy_;
}

// The thread. It runs all that was started, also after `stopping_` was set.
void Queue::run() {
  if (on_thread_) on_thread_();
  std::unique_lock lock(mutex_);
  for (;;) {
    started_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::shared_ptr<Work> work = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    Result<Verdict> result = work->body_();
    lock.lock();
    busy_ = false;
    failed_ = failed_ || !result || result->outcome != Outcome::kDone;
    work->end(std::move(result));
    if (!waiting_.empty()) continue;
    if (std::exchange(failed_, false) && on_failed_) {
      telling_ = true;
      lock.unlock();
      on_failed_();
      lock.lock();
      telling_ = false;
    }
    progress_.notify_all();
  }
}

}  // namespace holdfast::collective
