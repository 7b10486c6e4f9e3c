// Queue: operations that were started, run one after another on a thread of its own. Each team has
// one; that of the world's team also runs the sums of the steps, so that there is one order.
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

// An operation that was started. Any thread; it outlives its queue.
class Work {
 public:
  // An error: the operation could not begin.
  using Body = std::function<Result<Verdict>()>;
  explicit Work(Body body) : body_(std::move(body)) {}

  // What it came to, once it has ended; may be called again.
  [[nodiscard]] Result<Verdict> wait();
  [[nodiscard]] std::optional<Result<Verdict>> wait_for(Duration limit);

 private:
  friend class Queue;
  void end(Result<Verdict> result);

  Body body_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Result<Verdict>> result_;
};

// Any thread.
class Queue {
 public:
  // The queue's thread calls `on_thread` once, when it begins. It calls `on_failed` whenever it
  // runs empty and an operation has failed since it last did. Both may be empty functions.
  explicit Queue(std::function<void()> on_thread = {}, std::function<void()> on_failed = {})
      : on_thread_(std::move(on_thread)), on_failed_(std::move(on_failed)) {}
  // Runs all that was started, so abort their groups before.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // The thread is made by the first start.
  [[nodiscard]] std::shared_ptr<Work> start(Work::Body body);
  void drain();  // Returns when nothing is under way, `on_failed` neither.
  // Whether no operation is under way. It is so as soon as the last Work can be seen to have ended.
  [[nodiscard]] bool is_idle() const;

 private:
  void run();

  const std::function<void()> on_thread_;
  const std::function<void()> on_failed_;
  std::atomic<bool> used_ = false;  // Whoever only makes operations of its own takes no lock.
  mutable std::mutex mutex_;
  std::condition_variable started_;
  std::condition_variable progress_;
  std::deque<std::shared_ptr<Work>> waiting_;
  bool busy_ = false;
  bool failed_ = false;   // An operation, since on_failed_ was called.
  bool telling_ = false;  // on_failed_ is being called.
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace holdfast::collective
