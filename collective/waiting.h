// Waiting: how long threads of this process wait for other ranks, in operations that the program
// asked for. Sums on a queue's thread are none of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace holdfast::collective {

// While it lives, this thread waits. Nested ones count once.
class [[nodiscard]] Waiting {
 public:
  Waiting() : since_(depth_++ == 0 ? Clock::now() : Clock::time_point{}) {}
  ~Waiting() {
    if (--depth_ > 0) return;
    const std::int64_t took = std::chrono::nanoseconds(Clock::now() - since_).count();
    if (trains_) {
      mine_ += took;
      return;
    }
    for (std::int64_t longest = others_; longest < took;) {
      if (others_.compare_exchange_weak(longest, took, std::memory_order_relaxed)) return;
    }
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // The training thread calls these two. In nanoseconds: how long it has waited itself since the
  // last call;
  [[nodiscard]] static std::int64_t take_mine() {
    trains_ = true;
    return std::exchange(mine_, 0);
  }
  // and the longest wait of another thread since the last call. Such threads carry operations out
  // while the training thread computes: only the last of a step, mostly the longest, delays it.
  [[nodiscard]] static std::int64_t take_longest_of_others() {
    return others_.exchange(0, std::memory_order_relaxed);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static inline std::atomic<std::int64_t> others_ = 0;
  static inline thread_local int depth_ = 0;
  static inline thread_local bool trains_ = false;
  static inline thread_local std::int64_t mine_ = 0;
  const Clock::time_point since_;
};

// While it lives, a thread of the program waits for an operation of some ranks only.
class [[nodiscard]] TeamWait {
 public:
  explicit TeamWait(std::shared_ptr<std::atomic<std::uint64_t>> counted)
      : counted_(std::move(counted)) {
    if (counted_) ++*counted_;
  }
  ~TeamWait() {
    if (counted_) --*counted_;
  }
  TeamWait(const TeamWait&) = delete;
  TeamWait& operator=(const TeamWait&) = delete;

 private:
  const std::shared_ptr<std::atomic<std::uint64_t>> counted_;
};

}  // namespace holdfast::collective
