// A few threads that live long and run one piece of work at a time, together with the caller.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace holdfast::os {

class Pool {
 public:
  // `threads` includes the caller: starts threads - 1. Throws std::system_error if there can be no
  // more.
  explicit Pool(std::size_t threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] std::size_t size() const { return threads_.size() + 1; }
  // Calls work(0) here and work(1) .. work(count - 1) in the other threads; returns when all are
  // done. Requires: count <= size(); one caller at a time.
  void run(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  void serve(std::size_t index);
  void end();

  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::size_t count_ = 0;
  std::size_t running_ = 0;
  std::uint64_t round_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // Last: they use all above.
};

}  // namespace holdfast::os
