// Random bytes of the operating system, for names and numbers that nobody else may know or have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::os {

// Fills `size` bytes. Thread-safe.
void fill_with_random(void* bytes, std::size_t size);

inline std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  fill_with_random(&bits, sizeof bits);
  return bits;
}

}  // namespace holdfast::os
