#include "capi/fold.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::capi {
namespace {

// ---- Small floats: 16 bits in memory, float in the fold
// -------------------------------------------

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};
struct Bool {
  std::uint8_t byte;
};

float widen(Bfloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// To the nearest, ties to even.
void narrow(float x, Bfloat16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) {
    to.bits = 0x7fc0;
    return;
  }
  to.bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float widen(Float16 x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1f;
  const std::uint32_t fraction = x.bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

void narrow(float x, Float16& to) {
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

bool widen(Bool x) {
  return x.byte != 0;
}
void narrow(bool x, Bool& to) {
  to.byte = x ? 1 : 0;
}
template <class T>
T widen(T x) {
  return x;
}
template <class T>
void narrow(T x, T& to) {
  to = x;
}

// ---- Operations
// -----------------------------------------------------------------------------------

template <class T>
T add(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_integral_v<T>) {  // Wraps round.
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <class T>
T multiply(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a && b;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

// NaN wins, whichever rank has it.
template <class T>
T least(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  return b < a ? b : a;
}

template <class T>
T greatest(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  return a < b ? b : a;
}

template <hf_op kOp, class T>
T apply(T a, T b) {
  if constexpr (kOp == HF_PRODUCT) return multiply(a, b);
  if constexpr (kOp == HF_MIN) return least(a, b);
  if constexpr (kOp == HF_MAX) return greatest(a, b);
  if constexpr (std::is_integral_v<T>) {
    if constexpr (kOp == HF_AND) return static_cast<T>(a & b);
    if constexpr (kOp == HF_OR) return static_cast<T>(a | b);
    if constexpr (kOp == HF_XOR) return static_cast<T>(a ^ b);
  }
  return add(a, b);  // HF_SUM, HF_AVERAGE
}

template <class Stored>
Stored load(const std::byte* from) {  // Any alignment.
  Stored x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

struct Rows {
  const std::byte* data;
  std::size_t stride;
  std::size_t count;
};

template <hf_op kOp, class Stored>
void fold_as(std::byte* to, Rows rows, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* at = rows.data + i * sizeof(Stored);
    auto sum = widen(load<Stored>(at));
    for (std::size_t k = 1; k < rows.count; ++k) {
      sum = apply<kOp>(sum, widen(load<Stored>(at + k * rows.stride)));
    }
    if constexpr (kOp == HF_AVERAGE && std::is_floating_point_v<decltype(sum)>) {
      sum /= static_cast<decltype(sum)>(rows.count);
    }
    Stored out{};
    narrow(sum, out);
    std::memcpy(to + i * sizeof(Stored), &out, sizeof out);
  }
}

template <class Stored>
void fold_by(hf_op op, std::byte* to, Rows rows, std::size_t count) {
  switch (op) {
    case HF_SUM:
      return fold_as<HF_SUM, Stored>(to, rows, count);
    case HF_PRODUCT:
      return fold_as<HF_PRODUCT, Stored>(to, rows, count);
    case HF_MIN:
      return fold_as<HF_MIN, Stored>(to, rows, count);
    case HF_MAX:
      return fold_as<HF_MAX, Stored>(to, rows, count);
    case HF_AND:
      return fold_as<HF_AND, Stored>(to, rows, count);
    case HF_OR:
      return fold_as<HF_OR, Stored>(to, rows, count);
    case HF_XOR:
      return fold_as<HF_XOR, Stored>(to, rows, count);
    case HF_AVERAGE:
      return fold_as<HF_AVERAGE, Stored>(to, rows, count);
  }
}

// Calls `f` with a value of the type that `dtype` is in memory.
template <class F>
void with_type(hf_dtype dtype, F f) {
  switch (dtype) {
    case HF_FLOAT32:
      return f(float{});
    case HF_FLOAT64:
      return f(double{});
    case HF_INT32:
      return f(std::int32_t{});
    case HF_INT64:
      return f(std::int64_t{});
    case HF_FLOAT16:
      return f(Float16{});
    case HF_BFLOAT16:
      return f(Bfloat16{});
    case HF_INT8:
      return f(std::int8_t{});
    case HF_UINT8:
      return f(std::uint8_t{});
    case HF_INT16:
      return f(std::int16_t{});
    case HF_BOOL:
      return f(Bool{});
  }
}

bool is_float(hf_dtype dtype) {
  return dtype == HF_FLOAT32 || dtype == HF_FLOAT64 || dtype == HF_FLOAT16 || dtype == HF_BFLOAT16;
}

}  // namespace

bool is_known(hf_dtype dtype, hf_op op) {
  return dtype >= HF_FLOAT32 && dtype <= HF_BOOL && op >= HF_SUM && op <= HF_AVERAGE;
}

std::size_t size_of(hf_dtype dtype) {
  std::size_t bytes = 0;
  with_type(dtype, [&](auto stored) { bytes = sizeof stored; });
  return bytes;
}

const char* name_of(hf_dtype dtype) {
  constexpr const char* kNames[] = {"float32",  "float64", "int32", "int64", "float16",
                                    "bfloat16", "int8",    "uint8", "int16", "bool"};
  return kNames[dtype];
}

const char* name_of(hf_op op) {
  constexpr const char* kNames[] = {"sum",         "product",    "minimum",     "maximum",
                                    "bitwise and", "bitwise or", "bitwise xor", "average"};
  return kNames[op];
}

std::optional<std::string> objection(hf_dtype dtype, hf_op op) {
  const bool of_bits = op == HF_AND || op == HF_OR || op == HF_XOR;
  if (of_bits && is_float(dtype)) {
    return cat("there is no ", name_of(op), " of ", name_of(dtype), "; use whole numbers or bool");
  }
  if (op == HF_AVERAGE && !is_float(dtype)) {
    return cat("there is no average of ", name_of(dtype), "; use floats, or a sum");
  }
  return std::nullopt;
}

void fold(void* to, const std::byte* rows, std::size_t stride, std::size_t count_rows,
          std::size_t count, hf_dtype dtype, hf_op op) {
  HF_ASSERT(count_rows >= 1);
  with_type(dtype, [&](auto stored) {
    fold_by<decltype(stored)>(op, static_cast<std::byte*>(to), {rows, stride, count_rows}, count);
  });
}

void divide(void* data, std::size_t count, hf_dtype dtype, std::size_t by) {
  const auto each = [&](auto* numbers) {
    using T = std::remove_reference_t<decltype(*numbers)>;
    for (std::size_t i = 0; i < count; ++i) numbers[i] /= static_cast<T>(by);
  };
  HF_ASSERT(dtype == HF_FLOAT32 || dtype == HF_FLOAT64);
  dtype == HF_FLOAT32 ? each(static_cast<float*>(data)) : each(static_cast<double*>(data));
}

}  // namespace holdfast::capi
