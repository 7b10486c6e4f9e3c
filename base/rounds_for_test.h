// How many rounds a test makes, or how much data it moves: all in the usual build, a quarter under
// a sanitizer. A sanitizer makes everything ten times slower, and a quarter nearly always shows
// what it can find.
#pragma once

#include <cstdint>

namespace holdfast {

constexpr std::uint64_t rounds(std::uint64_t all) {
#ifdef HOLDFAST_SANITIZED
  return all < 4 ? 1 : all / 4;
#else
  return all;
#endif
}

}  // namespace holdfast
