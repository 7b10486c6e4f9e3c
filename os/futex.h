// Futexes in memory that several processes share.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace holdfast::os {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// Returns at once unless the word is `value`; else when somebody wakes its sleepers, after `limit`
// (null: never), or for no reason.
inline void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value, const timespec* limit) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, limit, nullptr,
            0);
}
inline void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr,
            nullptr, 0);
}

}  // namespace holdfast::os
