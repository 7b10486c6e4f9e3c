#include "os/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"

namespace holdfast::os {
namespace {

// One bit per descriptor, in plain static memory, because the child may make only async-signal-safe
// calls. 2^20 is the kernel's own default limit (fs.nr_open).
constexpr std::size_t kMostDescriptors = std::size_t{1} << 20;
std::array<std::uint64_t, kMostDescriptors / 64> guarded{};

std::mutex& fork_mutex() {
  static auto* const mutex = new std::mutex;  // Never destroyed: a fork may come at any time.
  return *mutex;
}

void after_fork_in_child() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (std::size_t word = 0; word < guarded.size(); ++word) {
    if (guarded.at(word) == 0) continue;
    for (std::size_t bit = 0; bit < 64; ++bit) {
      if ((guarded.at(word) >> bit & 1U) == 0) continue;
      const int fd = static_cast<int>(word * 64 + bit);
      if (null < 0 || ::dup3(null, fd, O_CLOEXEC) < 0) ::close(fd);
    }
    guarded.at(word) = 0;
  }
  if (null >= 0) ::close(null);
  fork_mutex().unlock();
}

// The word that holds the descriptor's bit.
std::uint64_t& word_of(int fd) {
  const auto index = static_cast<std::size_t>(fd);
  HF_ASSERT(fd >= 0 && index < kMostDescriptors);
  return guarded.at(index / 64);
}

std::uint64_t bit_of(int fd) {
  return std::uint64_t{1} << (fd % 64);
}

}  // namespace

std::unique_lock<std::mutex> hold_forks() {
  static const int registered = ::pthread_atfork(
      [] { fork_mutex().lock(); }, [] { fork_mutex().unlock(); }, &after_fork_in_child);
  HF_ASSERT(registered == 0);
  return std::unique_lock(fork_mutex());
}

void guard_from_children(int fd) {
  word_of(fd) |= bit_of(fd);
}

void unguard(int fd) {
  word_of(fd) &= ~bit_of(fd);
}

}  // namespace holdfast::os
