// Bfloat16, Float16, Bool: numbers that are kept in less memory than they are reckoned with in.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace holdfast::collective {

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t byte;
};

inline float widen(Bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// To the nearest, ties to even.
inline void narrow(float x, Bfloat16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) {
    to.bits = 0x7fc0;
    return;
  }
  to.bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float widen(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1f;
  const std::uint32_t fraction = x.bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

inline void narrow(float x, Float16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const float magnitude = std::fabs(x);
  std::uint32_t half = 0;
  if (std::isnan(x)) {
    half = 0x7e00;
  } else if (magnitude >= 65520.0F) {  // Rounds beyond the greatest half, 65504.
    half = 0x7c00;
  } else if (magnitude < 0x1p-14F) {  // Subnormal: in units of 2^-24.
    half = static_cast<std::uint32_t>(std::lrint(magnitude * 0x1p24F));
  } else {
    const std::uint32_t m = std::bit_cast<std::uint32_t>(magnitude) - (112U << 23);
    half = (m + 0xfff + ((m >> 13) & 1)) >> 13;
  }
  to.bits = static_cast<std::uint16_t>(sign | half);
}

inline bool widen(Bool x) {
  return x.byte != 0;
}
inline void narrow(bool x, Bool& to) {
  to.byte = x ? 1 : 0;
}
template <class T>
T widen(T x) {
  return x;
}
template <class T>
inline void narrow(T x, T& to) {
  to = x;
}

}  // namespace holdfast::collective
