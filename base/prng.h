// Pure random numbers: the same seed gives the same numbers on every machine, for ever.
#pragma once

#include <cstdint>

namespace holdfast {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection of 64 bits that mixes well.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// A number derived from several: derive(seed, rank, step). Order matters.
template <class... Rest>
constexpr std::uint64_t derive(std::uint64_t seed, Rest... rest) {
  std::uint64_t h = mix(seed + 0x9e3779b97f4a7c15U);
  ((h = mix(h ^ (static_cast<std::uint64_t>(rest) + 0x9e3779b97f4a7c15U + (h << 6) + (h >> 2)))),
   ...);
  return h;
}

class Prng {
  __extension__ using Wide = unsigned __int128;

 public:
  explicit Prng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15U); }
  // Uniform in [0, n); n > 0. Lemire's multiply-shift; the bias is below 2^-32 for n < 2^32.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * n) >> 64);
  }

 private:
  std::uint64_t state_;
};

}  // namespace holdfast
