#include "collective/gate.h"

#include <sched.h>

#include "os/futex.h"

namespace holdfast::collective {
namespace {

// Measured on 2 cores: 100 pauses (7 us) are enough if the peer has a core of its own. If it shares
// this core, 200 yields let it run, in half the time of a sleep. Spinning longer only takes the
// peer's time slice.
constexpr int kSpins = 100;
constexpr int kYields = 200;
constexpr timespec kLookAround{.tv_sec = 0, .tv_nsec = 20'000'000};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

WaitPolicy WaitPolicy::among(int waiters) {
  cpu_set_t cores;
  // The call fails only with more than 1024 cores: then there are enough.
  const bool known = ::sched_getaffinity(0, sizeof cores, &cores) == 0;
  return WaitPolicy(known && CPU_COUNT(&cores) < waiters);
}

Passage Gate::passage_of(std::uint64_t word, std::uint64_t target) {
  if (word / kOne >= target) return Passage::kPassed;  // Before the flags: complete stays complete.
  if ((word & kAbortedFlag) != 0) return Passage::kAborted;
  if ((word & kLeftFlag) != 0) return Passage::kLeft;
  return Passage::kOpen;
}

Passage Gate::look(std::uint64_t target) const {
  return passage_of(word_.load(), target);
}

Passage Gate::arrive(std::uint64_t target) {
  std::uint64_t word = word_.load();
  do {
    if ((word & kFlags) != 0) return passage_of(word, target);
  } while (!word_.compare_exchange_weak(word, word + kOne));
  const Passage passage = passage_of(word + kOne, target);
  if (passage == Passage::kPassed) ring();
  return passage;
}

Passage Gate::yield_until(std::uint64_t target, WaitPolicy& policy) const {
  Passage passage = look(target);
  if (passage != Passage::kOpen || !policy.may_yield()) return passage;
  auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < kYields && passage == Passage::kOpen; ++i) {
    ::sched_yield();
    passage = look(target);
    const auto after = std::chrono::steady_clock::now();
    if (!policy.goes_on(after - before)) break;
    before = after;
  }
  return passage;
}

Passage Gate::arrive_and_wait(std::uint64_t target, WaitPolicy& policy,
                              const std::function<bool()>& goes_on) {
  Passage passage = arrive(target);
  const int spins = policy.may_spin() ? kSpins : 0;
  for (int i = 0; i < spins && passage == Passage::kOpen; ++i) {
    relax();
    passage = look(target);
  }
  if (passage == Passage::kOpen) passage = yield_until(target, policy);
  if (passage != Passage::kOpen) return passage;
  // The sleeper is counted before the last look, and the word is written before the sleepers are
  // counted (ring): either we see the word or the other side sees us.
  sleepers_.fetch_add(1);
  for (;;) {
    const std::uint32_t heard = bell_.load();
    passage = look(target);
    if (passage != Passage::kOpen) break;
    sleep(heard, goes_on ? &kLookAround : nullptr);
    if (goes_on && !goes_on()) abort();
  }
  sleepers_.fetch_sub(1);
  return passage;
}

Passage Gate::arrive_and_wait(std::uint64_t target, std::chrono::steady_clock::time_point deadline,
                              const std::stop_token& cancel) {
  Passage passage = arrive(target);
  if (passage != Passage::kOpen) return passage;
  sleepers_.fetch_add(1);
  const std::stop_callback wake(cancel, [this] { ring(); });
  for (;;) {
    const std::uint32_t heard = bell_.load();
    passage = look(target);
    if (passage != Passage::kOpen) break;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (cancel.stop_requested() || left <= left.zero()) {
      abort();
      continue;
    }
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    sleep(heard, &limit);
  }
  sleepers_.fetch_sub(1);
  return passage;
}

void Gate::freeze(std::uint64_t flag) {
  word_.fetch_or(flag);
  ring();
}

void Gate::ring() {
  if (sleepers_.load() == 0) return;
  bell_.fetch_add(1);
  os::wake_all(bell_);
}

void Gate::sleep(std::uint32_t heard, const timespec* limit) {
  os::sleep_on(bell_, heard, limit);
}

}  // namespace holdfast::collective
