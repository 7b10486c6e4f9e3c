#include "collective/reduce.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/assert.h"
#include "collective/small_floats.h"
#include "collective/sum.h"

namespace holdfast::collective {
namespace {

using Rows = std::span<const std::byte* const>;

template <class T>
T widen(T x) {
  return x;
}
template <class T>
void narrow(T x, T& to) {
  to = x;
}

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

template <Op kOp, class T>
T apply(T a, T b) {
  if constexpr (kOp == Op::kProduct) return multiply(a, b);
  if constexpr (kOp == Op::kMin) return least(a, b);
  if constexpr (kOp == Op::kMax) return greatest(a, b);
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

template <class Stored>
void reduce_by(Op op, std::byte* to, Rows rows, std::size_t count) {
  switch (op) {
    case Op::kSum:
      return reduce_as<Op::kSum, Stored>(to, rows, count);
    case Op::kProduct:
      return reduce_as<Op::kProduct, Stored>(to, rows, count);
    case Op::kMin:
      return reduce_as<Op::kMin, Stored>(to, rows, count);
    case Op::kMax:
      return reduce_as<Op::kMax, Stored>(to, rows, count);
    case Op::kAnd:
      return reduce_as<Op::kAnd, Stored>(to, rows, count);
    case Op::kOr:
      return reduce_as<Op::kOr, Stored>(to, rows, count);
    case Op::kXor:
      return reduce_as<Op::kXor, Stored>(to, rows, count);
    case Op::kAverage:
      return reduce_as<Op::kAverage, Stored>(to, rows, count);
  }
}

// Calls `f` with a value of the type that `element` is in memory.
template <class F>
void with_type(Element element, F f) {
  switch (element) {
    case Element::kFloat32:
      return f(float{});
    case Element::kFloat64:
      return f(double{});
    case Element::kInt32:
      return f(std::int32_t{});
    case Element::kInt64:
      return f(std::int64_t{});
    case Element::kFloat16:
      return f(Float16{});
    case Element::kBfloat16:
      return f(Bfloat16{});
    case Element::kInt8:
      return f(std::int8_t{});
    case Element::kUint8:
      return f(std::uint8_t{});
    case Element::kInt16:
      return f(std::int16_t{});
    case Element::kBool:
      return f(Bool{});
    case Element::kBytes:
      break;
  }
  HF_ASSERT(false);  // Bytes are carried, never reduced.
}

void reduce_any(std::byte* out, Rows rows, std::size_t count, Reduction how) {
  with_type(how.element,
            [&](auto stored) { reduce_by<decltype(stored)>(how.op, out, rows, count); });
}

// Whether sum.h has it.
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

// What follows a fast sum.
void divide(std::byte* data, std::size_t count, Reduction how, std::size_t by) {
  if (how.op != Op::kAverage) return;
  how.element == Element::kFloat32 ? divide_as<float>(data, count, by)
                                   : divide_as<double>(data, count, by);
}

}  // namespace

void reduce_rows(std::byte* out, Rows rows, std::size_t count, Reduction how,
                 const std::byte* soon) {
  if (!is_fast(how)) return reduce_any(out, rows, count, how);
  sum_rows(out, rows, count, how.element, soon);
  divide(out, count, how, rows.size());
}

void reduce_past_caches(std::byte* out, Rows rows, std::size_t count, Reduction how,
                        const std::byte* soon) {
  if (how.op != Op::kSum || !is_summed(how.element)) {
    return reduce_rows(out, rows, count, how, soon);
  }
  sum_past_caches(out, rows, count, how.element, soon);
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
  constexpr std::size_t kLong = 4096;  // Below, the end of a pass past the caches costs more.
  const bool fit = bytes >= kLong && reinterpret_cast<std::uintptr_t>(to) % kStreamed == 0;
  const std::size_t words = fit ? bytes / kWord : 0;
  if (words > 0) sum_past_caches(to, {&from, 1}, words, Element::kInt32);
  const std::size_t done = words * kWord;
  if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace holdfast::collective
