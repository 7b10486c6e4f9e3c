// Gate: a barrier in shared memory that can be aborted. One word alone decides whether it is
// complete.
//
// The word holds the number of all arrivals so far, and two flags. An arrival is a compare-and-swap
// that fails once a flag is set, so a flag freezes the count. Barrier k of n ranks is complete
// exactly if the count has reached (k + 1) * n, and everybody who looks agrees.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>

namespace holdfast::collective {

enum class Passage : std::uint8_t { kOpen, kPassed, kAborted, kLeft };

// WaitPolicy: how one waiter waits at gates: whether it spins first, and whether it yields its
// core.
//
// If a peer shares the core, a yield is the fastest way to let it run. But if a process that never
// waits shares the core, a yield gives up the whole time slice. Then each yield costs milliseconds,
// whereas a sleeper would be woken in microseconds. So after one yield that took long, the waiter
// does not yield in its next kRest waits. If there are more waiters than cores, a peer probably
// needs this core, so the waiter does not spin either.
//
// One thread at a time.
class WaitPolicy {
 public:
  explicit WaitPolicy(bool crowded = false) : crowded_(crowded) {}
  // For one of `waiters` waiters, on the cores that this process may run on.
  static WaitPolicy among(int waiters);
  [[nodiscard]] bool may_spin() const { return !crowded_; }
  // Ask it once per wait.
  [[nodiscard]] bool may_yield() { return rest_ == 0 || --rest_ == 0; }
  // Whether to yield once more, after a yield that took `yielded`.
  [[nodiscard]] bool goes_on(std::chrono::nanoseconds yielded) {
    if (yielded > kLong) rest_ = kRest;
    return rest_ == 0;
  }

  static constexpr std::chrono::microseconds kLong{500};
  static constexpr std::uint32_t kRest = 1000;  // Counted in waits.

 private:
  bool crowded_;
  std::uint32_t rest_ = 0;
};

// A Gate lies in memory that several processes map. Zero bytes are a fresh one.
class Gate {
 public:
  // Arrives and waits until `target` arrivals are counted or a flag is set. Never returns kOpen.
  // Spins for a moment if there are cores enough, then yields if that is cheap, then sleeps, so
  // that a peer on the same core gets to run.
  Passage arrive_and_wait(std::uint64_t target, WaitPolicy& policy) {
    return arrive_and_wait(target, policy, {});
  }
  // The same, but a sleeper calls `goes_on` every 20 ms, and aborts the gate if that returns false.
  Passage arrive_and_wait(std::uint64_t target, WaitPolicy& policy,
                          const std::function<bool()>& goes_on);
  // The same, but at `deadline` or on `cancel` it aborts the gate and looks once more.
  Passage arrive_and_wait(std::uint64_t target, std::chrono::steady_clock::time_point deadline,
                          const std::stop_token& cancel);
  void abort() { freeze(kAbortedFlag); }
  void leave() { freeze(kLeftFlag); }
  [[nodiscard]] bool aborted() const { return (word_.load() & kAbortedFlag) != 0; }
  [[nodiscard]] bool frozen() const {
    return (word_.load(std::memory_order_relaxed) & kFlags) != 0;
  }
  // How many waiters sleep in the kernel. One that is killed there stays counted.
  [[nodiscard]] std::uint32_t sleepers() const { return sleepers_.load(); }

 private:
  static constexpr std::uint64_t kAbortedFlag = 1;
  static constexpr std::uint64_t kLeftFlag = 2;
  static constexpr std::uint64_t kFlags = 3;
  static constexpr std::uint64_t kOne = 4;

  static Passage passage_of(std::uint64_t word, std::uint64_t target);
  [[nodiscard]] Passage look(std::uint64_t target) const;
  Passage arrive(std::uint64_t target);
  void freeze(std::uint64_t flag);
  void ring();
  void sleep(std::uint32_t heard, const timespec* limit);
  [[nodiscard]] Passage yield_until(std::uint64_t target, WaitPolicy& policy) const;

  alignas(128) std::atomic<std::uint64_t> word_;
  alignas(128) std::atomic<std::uint32_t> bell_;  // The futex. Rung only if somebody sleeps.
  std::atomic<std::uint32_t> sleepers_;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace holdfast::collective
