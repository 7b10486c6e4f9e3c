#include "collective/reduce.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "collective/sum.h"

namespace holdfast::collective {
namespace {

using Rows = std::span<const std::byte* const>;

// Types that are stored in fewer bytes than they are computed in, and bool.
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

// Rounds to the nearest, ties to even.
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

// Whole numbers wrap around. For bool the sum is "or": any number but 0 converts to true.
template <class T>
T add(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a + b;
  return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <class T>
T multiply(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return a * b;
  return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

// The lesser or the greater. If either is NaN, so is the result.
template <Op kOp, class T>
T extreme(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  return (kOp == Op::kMin ? b < a : a < b) ? b : a;
}

template <Op kOp, class T>
T apply(T a, T b) {
  if constexpr (kOp == Op::kProduct) return multiply(a, b);
  if constexpr (kOp == Op::kMin || kOp == Op::kMax) return extreme<kOp>(a, b);
  if constexpr (std::is_integral_v<T>) {
    if constexpr (kOp == Op::kAnd) return static_cast<T>(a & b);
    if constexpr (kOp == Op::kOr) return static_cast<T>(a | b);
    if constexpr (kOp == Op::kXor) return static_cast<T>(a ^ b);
  }
  return add(a, b);  // Op::kSum, Op::kAverage
}

template <class Stored>
Stored load(const std::byte* from) {  // Any alignment.
  Stored x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// All rows are read at an element before the result is written there: `to` may be one of them.
template <Op kOp, class Stored>
void reduce_as(std::byte* to, Rows rows, std::size_t count) {
  for (std::size_t at = 0; at < count * sizeof(Stored); at += sizeof(Stored)) {
    auto result = widen(load<Stored>(rows[0] + at));
    for (std::size_t k = 1; k < rows.size(); ++k) {
      result = apply<kOp>(result, widen(load<Stored>(rows[k] + at)));
    }
    if constexpr (kOp == Op::kAverage && std::is_floating_point_v<decltype(result)>) {
      result /= static_cast<decltype(result)>(rows.size());
    }
    Stored out{};
    narrow(result, out);
    std::memcpy(to + at, &out, sizeof out);
  }
}

using Reduce = void (*)(std::byte* to, Rows rows, std::size_t count);
constexpr std::size_t kOps = 8;

template <class Stored, std::size_t... kOp>
constexpr std::array<Reduce, kOps> by_op(std::index_sequence<kOp...>) {
  return {reduce_as<static_cast<Op>(kOp), Stored>...};
}

// By Element and by Op, in the order in which these are declared. The types are those in memory.
template <class... Stored>
constexpr std::array<std::array<Reduce, kOps>, sizeof...(Stored)> table_of() {
  return {by_op<Stored>(std::make_index_sequence<kOps>())...};
}

// reduce_part() for float16 and bfloat16, whose partials are float.
template <Op kOp, class Stored>
void part_as(std::byte* to, const std::byte* before, Rows rows, std::size_t count,
             std::size_t all) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * sizeof(Stored);
    float result = before != nullptr ? load<float>(before + i * sizeof(float))
                                     : widen(load<Stored>(rows[0] + at));
    for (std::size_t k = before != nullptr ? 0 : 1; k < rows.size(); ++k) {
      result = apply<kOp>(result, widen(load<Stored>(rows[k] + at)));
    }
    if (all == 0) {
      std::memcpy(to + i * sizeof result, &result, sizeof result);
      continue;
    }
    if constexpr (kOp == Op::kAverage) result /= static_cast<float>(all);
    Stored out{};
    narrow(result, out);
    std::memcpy(to + at, &out, sizeof out);
  }
}

using ReducePart = void (*)(std::byte* to, const std::byte* before, Rows rows, std::size_t count,
                            std::size_t all);
template <class Stored, std::size_t... kOp>
constexpr std::array<ReducePart, kOps> parts_by_op(std::index_sequence<kOp...>) {
  return {part_as<static_cast<Op>(kOp), Stored>...};
}
constexpr auto kPartOfFloat16 = parts_by_op<Float16>(std::make_index_sequence<kOps>());
constexpr auto kPartOfBfloat16 = parts_by_op<Bfloat16>(std::make_index_sequence<kOps>());

constexpr auto kReduce = table_of<float, double, std::int32_t, std::int64_t, Float16, Bfloat16,
                                  std::int8_t, std::uint8_t, std::int16_t, Bool>();

void reduce_any(std::byte* out, Rows rows, std::size_t count, Reduction how) {
  const auto element = static_cast<std::size_t>(how.element);
  const auto op = static_cast<std::size_t>(how.op);
  HF_ASSERT(element < kReduce.size() && op < kOps);  // Bytes are carried, never reduced.
  kReduce[element][op](out, rows, count);
}

// Whether sum.h has a fast path for it.
bool is_fast(Reduction how) {
  return (how.op == Op::kSum || how.op == Op::kAverage) && is_summed(how.element);
}

template <class Float>
void divide_as(std::byte* data, std::size_t count, std::size_t by) {
  for (std::size_t at = 0; at < count * sizeof(Float); at += sizeof(Float)) {
    const Float quotient = load<Float>(data + at) / static_cast<Float>(by);
    std::memcpy(data + at, &quotient, sizeof quotient);
  }
}

// The second half of Op::kAverage, after a fast sum.
void divide(std::byte* data, std::size_t count, Reduction how, std::size_t by) {
  if (how.op != Op::kAverage) return;
  how.element == Element::kFloat32 ? divide_as<float>(data, count, by)
                                   : divide_as<double>(data, count, by);
}

}  // namespace

void reduce_rows(std::byte* out, Rows rows, std::size_t count, Reduction how, const std::byte* soon,
                 bool past_caches) {
  if (!is_fast(how)) return reduce_any(out, rows, count, how);
  sum_rows(out, rows, count, how.element, soon, past_caches && how.op == Op::kSum);
  divide(out, count, how, rows.size());
}

void reduce_part(std::byte* out, const std::byte* before, Rows rows, std::size_t count,
                 Reduction how, std::size_t all) {
  HF_ASSERT(!rows.empty());
  if (!is_own_partial(how.element)) {
    HF_ASSERT(static_cast<std::size_t>(how.op) < kOps);
    const auto& by_op = how.element == Element::kFloat16 ? kPartOfFloat16 : kPartOfBfloat16;
    return by_op[static_cast<std::size_t>(how.op)](out, before, rows, count, all);
  }
  // A partial is like one row more. The average is a sum until the end.
  const Reduction sum{how.element, how.op == Op::kAverage ? Op::kSum : how.op};
  if (before == nullptr) {
    reduce_rows(out, rows, count, sum);
  } else {
    std::vector<const std::byte*> with_before = {before};
    with_before.insert(with_before.end(), rows.begin(), rows.end());
    reduce_rows(out, with_before, count, sum);
  }
  if (all != 0) divide(out, count, how, all);
}

void reduce_in_place(std::span<std::byte* const> rows, std::size_t count, Reduction how) {
  if (is_fast(how)) {
    sum_in_place(rows, count, how.element);
    if (how.op != Op::kAverage) return;
    for (std::byte* row : rows) divide(row, count, how, rows.size());
    return;
  }
  reduce_any(rows[0], {rows.data(), rows.size()}, count, how);
  for (std::byte* row : rows.subspan(1)) std::memcpy(row, rows[0], count * size_of(how.element));
}

bool keeps_one_row(Reduction how) {
  return is_summed(how.element) && how.op != Op::kAverage;
}

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kWord = sizeof(std::int32_t);
  constexpr std::size_t kLong = 4096;  // Below, the fence after streaming stores costs too much.
  const bool fit = bytes >= kLong && reinterpret_cast<std::uintptr_t>(to) % kStreamed == 0;
  const std::size_t words = fit ? bytes / kWord : 0;
  if (words > 0) sum_rows(to, {&from, 1}, words, Element::kInt32, nullptr, true);
  const std::size_t done = words * kWord;
  if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace holdfast::collective
