// Progress: runs started operations one after another on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "collective/group.h"

namespace holdfast::collective {

// start() and drain() by one thread at a time; wait() by any.
class Progress {
 public:
  using Operation = std::function<Outcome()>;
  // What the thread calls, as in Group::Options; each may be empty.
  explicit Progress(std::function<void()> on_start = {}, std::function<void()> on_failed = {})
      : on_start_(std::move(on_start)), on_failed_(std::move(on_failed)) {}
  ~Progress();

  // The thread is made by the first start.
  Ticket start(Operation operation);
  // As if an operation with this outcome, which is final, had been started and had ended. Nothing
  // must be under way.
  Ticket start_ended(Outcome failure);
  Outcome wait(Ticket ticket);
  void drain();  // Returns when nothing is under way; at once if nothing was ever started.
  [[nodiscard]] bool is_idle() const;

 private:
  void run();
  void end_one(Outcome outcome);
  void wait_for(std::unique_lock<std::mutex>& lock, std::uint64_t number);

  const std::function<void()> on_start_;
  const std::function<void()> on_failed_;
  std::uint64_t started_ = 0;  // Written by the starting thread, under the mutex.
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable progress_;
  std::deque<Operation> queue_;
  std::uint64_t ended_ = 0;
  // Outcomes but kDone are final, so the first of them tells all that follow.
  std::uint64_t failed_from_ = ~std::uint64_t{0};
  Outcome failure_ = Outcome::kDone;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace holdfast::collective
