#include "collective/sum.h"

#include <cstdint>

#include "base/assert.h"

// One build serves every x86-64; the loader picks the widest form that the machine has. The bits
// are the same in all: no contraction to fused multiply-add, no reordering. Sanitizers run before
// such a pick is possible.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(HOLDFAST_SANITIZED)
#define HF_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define HF_CLONES
#endif

namespace holdfast::collective {
namespace {

// Inlined into each clone of its caller, so built for that machine.
#define HF_INLINE inline __attribute__((always_inline))

// Adds up into `out`, or into all the rows if that is null. A register of every row is read
// before the sum's is written, so `out` may be a row. kRanks is n, or 0 if the compiler need not
// know it.
template <class T, std::size_t kRanks>
HF_INLINE void sum_lanes(std::byte* out, std::byte* const* rows, std::size_t n, std::size_t count) {
  using Lanes [[gnu::vector_size(32), gnu::aligned(alignof(T)), gnu::may_alias]] = T;
  const std::size_t ranks = kRanks != 0 ? kRanks : n;
  std::size_t at = 0;
  for (; at + sizeof(Lanes) <= count * sizeof(T); at += sizeof(Lanes)) {
    Lanes sum = *reinterpret_cast<const Lanes*>(rows[0] + at);
    for (std::size_t k = 1; k < ranks; ++k) {
      sum = sum + *reinterpret_cast<const Lanes*>(rows[k] + at);
    }
    if (out != nullptr) {
      *reinterpret_cast<Lanes*>(out + at) = sum;
    } else {
      for (std::size_t k = 0; k < ranks; ++k) *reinterpret_cast<Lanes*>(rows[k] + at) = sum;
    }
  }
  for (; at < count * sizeof(T); at += sizeof(T)) {
    T sum = *reinterpret_cast<const T*>(rows[0] + at);
    for (std::size_t k = 1; k < ranks; ++k) sum = sum + *reinterpret_cast<const T*>(rows[k] + at);
    if (out != nullptr) {
      *reinterpret_cast<T*>(out + at) = sum;
    } else {
      for (std::size_t k = 0; k < ranks; ++k) *reinterpret_cast<T*>(rows[k] + at) = sum;
    }
  }
}

template <class T>
HF_INLINE void sum_of(std::byte* out, std::byte* const* rows, std::size_t n, std::size_t count) {
  if (n == 2) return sum_lanes<T, 2>(out, rows, n, count);
  if (n == 4) return sum_lanes<T, 4>(out, rows, n, count);
  sum_lanes<T, 0>(out, rows, n, count);
}

HF_CLONES void sum_floats(std::byte* o, std::byte* const* r, std::size_t n, std::size_t count) {
  sum_of<float>(o, r, n, count);
}
HF_CLONES void sum_doubles(std::byte* o, std::byte* const* r, std::size_t n, std::size_t count) {
  sum_of<double>(o, r, n, count);
}
// Unsigned: overflow wraps.
HF_CLONES void sum_int32s(std::byte* o, std::byte* const* r, std::size_t n, std::size_t count) {
  sum_of<std::uint32_t>(o, r, n, count);
}
HF_CLONES void sum_int64s(std::byte* o, std::byte* const* r, std::size_t n, std::size_t count) {
  sum_of<std::uint64_t>(o, r, n, count);
}

void dispatch(std::byte* out, std::span<std::byte* const> rows, std::size_t count,
              Element element) {
  switch (element) {
    case Element::kFloat:
      return sum_floats(out, rows.data(), rows.size(), count);
    case Element::kDouble:
      return sum_doubles(out, rows.data(), rows.size(), count);
    case Element::kInt32:
      return sum_int32s(out, rows.data(), rows.size(), count);
    case Element::kInt64:
      return sum_int64s(out, rows.data(), rows.size(), count);
    case Element::kBytes:
      break;
  }
  HF_ASSERT(false);  // Bytes are carried, never added.
}

}  // namespace

std::size_t size_of(Element element) {
  switch (element) {
    case Element::kBytes:
      return 1;
    case Element::kFloat:
      return sizeof(float);
    case Element::kDouble:
      return sizeof(double);
    case Element::kInt32:
      return sizeof(std::int32_t);
    case Element::kInt64:
      return sizeof(std::int64_t);
  }
  return 1;
}

const char* name_of(Element element) {
  switch (element) {
    case Element::kBytes:
      return "bytes";
    case Element::kFloat:
      return "float";
    case Element::kDouble:
      return "double";
    case Element::kInt32:
      return "int32";
    case Element::kInt64:
      return "int64";
  }
  return "an unknown type";
}

void sum_rows(std::byte* out, std::span<std::byte* const> rows, std::size_t count,
              Element element) {
  dispatch(out, rows, count, element);
}

void sum_in_place(std::span<std::byte* const> rows, std::size_t count, Element element) {
  dispatch(nullptr, rows, count, element);
}

}  // namespace holdfast::collective
