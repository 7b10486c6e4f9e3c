#include "os/random_bits.h"

#include <sys/random.h>

#include <cerrno>

#include "base/assert.h"

namespace holdfast::os {

void fill_with_random(void* bytes, std::size_t size) {
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = ::getrandom(at, size, 0);
    HF_ASSERT(got > 0 || errno == EINTR);  // It fails on no kernel that we run on.
    if (got <= 0) continue;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
}

}  // namespace holdfast::os
