#include "os/robust_mutex.h"

#include <cerrno>
#include <cstdint>
#include <ctime>

#include "base/assert.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// glibc has it since 2.30, and a wheel may meet an older one.
extern "C" int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                       const timespec* until) noexcept __attribute__((weak));

namespace holdfast::os {
namespace {

// Without that, by the clock of the day, which somebody may set.
int lock_until_after(pthread_mutex_t& mutex, Duration at_most) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const clockid_t clock = pthread_mutex_clocklock != nullptr ? CLOCK_MONOTONIC : CLOCK_REALTIME;
  timespec until{};
  clock_gettime(clock, &until);
  const std::int64_t nanoseconds = until.tv_nsec + at_most.count();
  until.tv_sec += nanoseconds / kSecond;
  until.tv_nsec = nanoseconds % kSecond;
  return clock == CLOCK_MONOTONIC ? pthread_mutex_clocklock(&mutex, clock, &until)
                                  : pthread_mutex_timedlock(&mutex, &until);
}

// GCC 12's ThreadSanitizer sees pthread_mutex_unlock but not pthread_mutex_clocklock.
void tell_sanitizer(pthread_mutex_t& mutex) {
#if defined(__SANITIZE_THREAD__)
  __tsan_mutex_pre_lock(&mutex, 0);
  __tsan_mutex_post_lock(&mutex, 0, 0);
#else
  static_cast<void>(mutex);
#endif
}

}  // namespace

void init_robust(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  HF_ASSERT(pthread_mutexattr_init(&attributes) == 0);
  HF_ASSERT(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  HF_ASSERT(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  HF_ASSERT(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK) == 0);
  HF_ASSERT(pthread_mutex_init(&mutex, &attributes) == 0);
  pthread_mutexattr_destroy(&attributes);
}

Locked lock_robust(pthread_mutex_t& mutex, Duration at_most) {
  const int result = lock_until_after(mutex, at_most);
  if (result == ETIMEDOUT || result == EDEADLK) return Locked::kNot;
  if (result != 0 && result != EOWNERDEAD) return Locked::kUnusable;
  tell_sanitizer(mutex);
  if (result == 0) return Locked::kFree;
  pthread_mutex_consistent(&mutex);
  return Locked::kOrphaned;
}

void unlock_robust(pthread_mutex_t& mutex) {
  HF_ASSERT(pthread_mutex_unlock(&mutex) == 0);
}

}  // namespace holdfast::os
