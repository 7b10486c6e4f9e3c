// Queue: runs started operations one after another, on a thread of its own. Each team has one. The
// queue of the world's team also runs the gradient sums of the steps, so that all operations of the
// world have one order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "collective/outcome.h"

namespace holdfast::collective {

// An operation that was started. Any thread; a Work may outlive its queue.
class Work {
 public:
  // Returns an error if the operation could not begin.
  using Body = std::function<Result<Verdict>()>;
  // `waits`: where to count the threads that wait for it; may be null.
  explicit Work(Body body, std::shared_ptr<std::atomic<std::uint64_t>> waits = nullptr)
      : body_(std::move(body)), waits_(std::move(waits)) {}

  // Waits for the end, and returns how the operation ended. wait_for() returns nothing if it has
  // not ended within `limit`. Both may be called again.
  [[nodiscard]] Result<Verdict> wait();
  [[nodiscard]] std::optional<Result<Verdict>> wait_for(Duration limit);

 private:
  friend class Queue;
  void end(Result<Verdict> result);

  Body body_;
  const std::shared_ptr<std::atomic<std::uint64_t>> waits_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Result<Verdict>> result_;
};

// Any thread.
class Queue {
 public:
  // The queue's thread calls `on_thread` once, when it begins. It calls `on_failed` each time that
  // the queue becomes empty, if an operation has failed since the last call. Both may be empty.
  explicit Queue(std::function<void()> on_thread = {}, std::function<void()> on_failed = {})
      : on_thread_(std::move(on_thread)), on_failed_(std::move(on_failed)) {}
  // Waits for all that was started, so abort the operations' groups before.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // The first call makes the thread. `waits`: as in Work.
  [[nodiscard]] std::shared_ptr<Work> start(
      Work::Body body, std::shared_ptr<std::atomic<std::uint64_t>> waits = nullptr);
  void drain();  // Waits until no operation is under way, nor a call of `on_failed`.
  // Whether no operation is under way. True at the latest when wait() of the last Work returns.
  [[nodiscard]] bool is_idle() const;

 private:
  void run();

  const std::function<void()> on_thread_;
  const std::function<void()> on_failed_;
  std::atomic<bool> used_ = false;  // start() was called. Until then drain() takes no lock.
  mutable std::mutex mutex_;
  std::condition_variable started_;
  std::condition_variable progress_;
  std::deque<std::shared_ptr<Work>> waiting_;
  bool busy_ = false;
  bool failed_ = false;   // An operation has failed since the last call of on_failed_.
  bool telling_ = false;  // on_failed_ is being called.
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace holdfast::collective
