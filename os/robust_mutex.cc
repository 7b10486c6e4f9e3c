#include "os/robust_mutex.h"

#include <cerrno>
#include <ctime>

#include "base/assert.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace holdfast::os {
namespace {

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
  constexpr std::int64_t kSecond = 1'000'000'000;
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const std::int64_t nanoseconds = until.tv_nsec + at_most.count();
  until.tv_sec += nanoseconds / kSecond;
  until.tv_nsec = nanoseconds % kSecond;
  const int result = pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &until);
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
