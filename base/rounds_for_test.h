// How often a test repeats itself. Under a sanitizer a round takes ten times as long, and what it
// finds seldom hides from a quarter of them; the usual build runs them all.
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
