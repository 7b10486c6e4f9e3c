// Queue: started operations of one group, run one after another on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/ids.h"
#include "capi/error.h"

namespace holdfast::capi {

using Operation = std::function<Verdict()>;

// An operation under way. Any thread.
class Work {
 public:
  explicit Work(Operation operation) : operation_(std::move(operation)) {}
  void run();
  // HF_PENDING if it has not ended within `limit`; negative: waits until it has.
  [[nodiscard]] Verdict wait(Duration limit);

 private:
  Operation operation_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  Verdict verdict_;
};

// Any thread.
class Queue {
 public:
  Queue() = default;
  // Runs what was started, so abort the group before.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // The thread is made by the first start.
  std::shared_ptr<Work> start(Operation operation);
  void drain();  // Returns when nothing is under way.
  [[nodiscard]] bool is_idle();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Work>> waiting_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace holdfast::capi
