// A mutex in shared memory that tells whether its last holder died.
#pragma once

#include <pthread.h>

#include <cstdint>

#include "base/ids.h"

namespace holdfast::os {

enum class Locked : std::uint8_t {
  kFree,      // It was free, or its holder let go.
  kOrphaned,  // Its holder died; the mutex is usable again.
  kNot,       // Still held after the time.
  kUnusable,  // Not a mutex: the bytes are damaged.
};

void init_robust(pthread_mutex_t& mutex);
[[nodiscard]] Locked lock_robust(pthread_mutex_t& mutex, Duration at_most);
// Requires: locked by this thread.
void unlock_robust(pthread_mutex_t& mutex);

}  // namespace holdfast::os
