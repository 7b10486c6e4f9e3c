// How often a test repeats itself, or how much it moves. Under a sanitizer all takes ten times as
// long, and what that finds seldom hides from a quarter of it; the usual build does it all.
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
