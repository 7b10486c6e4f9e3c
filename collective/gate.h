// Gate: an abortable barrier in shared memory, whose completion is decided by one word alone.
//
// The word holds the number of arrivals ever and two flags. An arrival is a compare-and-swap that
// fails once a flag is set, so a flag freezes the count: barrier k of n ranks is complete exactly
// if the count has reached (k + 1) * n, and everybody who looks agrees.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stop_token>

namespace holdfast::collective {

enum class Passage : std::uint8_t { kOpen, kPassed, kAborted, kLeft };

// Zero bytes are a fresh Gate. Lies in memory that several processes map.
class Gate {
 public:
  // Arrives and waits until `target` arrivals were counted or a flag is set. Never kOpen. Spins for
  // a moment, then yields, then sleeps: on one core the one waited for must get to run.
  Passage pass(std::uint64_t target);
  // The same, but gives up, by aborting, at `deadline` or on `cancel`; looks once more after that.
  Passage pass(std::uint64_t target, std::chrono::steady_clock::time_point deadline,
               const std::stop_token& cancel);
  void abort() { freeze(kAbortedFlag); }
  void leave() { freeze(kLeftFlag); }
  [[nodiscard]] bool aborted() const { return (word_.load() & kAbortedFlag) != 0; }
  [[nodiscard]] bool frozen() const {
    return (word_.load(std::memory_order_relaxed) & kFlags) != 0;
  }
  // How many are asleep in the kernel, or were killed there.
  [[nodiscard]] std::uint32_t sleepers() const { return sleepers_.load(); }

 private:
  static constexpr std::uint64_t kAbortedFlag = 1;
  static constexpr std::uint64_t kLeftFlag = 2;
  static constexpr std::uint64_t kFlags = 3;
  static constexpr std::uint64_t kOne = 4;

  static Passage judge(std::uint64_t word, std::uint64_t target);
  [[nodiscard]] Passage look(std::uint64_t target) const;
  Passage arrive(std::uint64_t target);
  void freeze(std::uint64_t flag);
  void ring();
  void sleep(std::uint32_t heard, const timespec* limit);

  alignas(128) std::atomic<std::uint64_t> word_;
  alignas(128) std::atomic<std::uint32_t> bell_;  // The futex. Rung only if somebody sleeps.
  std::atomic<std::uint32_t> sleepers_;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace holdfast::collective
