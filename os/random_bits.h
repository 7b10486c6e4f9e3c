// 64 random bits of the operating system, for names that nobody else may have.
#pragma once

#include <cstdint>
#include <random>

namespace holdfast::os {

inline std::uint64_t random_bits() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace holdfast::os
