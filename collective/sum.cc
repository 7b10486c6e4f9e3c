#include "collective/sum.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/assert.h"

// One build serves every x86-64; the loader picks the widest form that the machine has. The bits
// are the same in all: no contraction to fused multiply-add, no reordering. Sanitizers run before
// such a pick is possible.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(HOLDFAST_SANITIZED)
#define HF_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define HF_CLONES
#endif

namespace holdfast::collective {
namespace {

template <class T>
inline __attribute__((always_inline)) void sum_any(T* out, std::byte* const* rows, std::size_t n,
                                                   std::size_t count) {
  // `out` may be rows[k], which is still to be read when rows[0] + rows[1] is written: so add up
  // in a block of our own.
  constexpr std::size_t kBlock = 1024 / sizeof(T);
  T sums[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const std::size_t m = std::min(kBlock, count - at);
    const T* row = reinterpret_cast<const T*>(rows[0]) + at;
    std::copy(row, row + m, sums);
    for (std::size_t k = 1; k < n; ++k) {
      row = reinterpret_cast<const T*>(rows[k]) + at;
      for (std::size_t i = 0; i < m; ++i) sums[i] = sums[i] + row[i];
    }
    std::copy(sums, sums + m, out + at);
  }
}

template <class T>
inline __attribute__((always_inline)) void sum_of(std::byte* bytes, std::byte* const* rows,
                                                  std::size_t n, std::size_t count) {
  T* out = reinterpret_cast<T*>(bytes);
  const T* a = reinterpret_cast<const T*>(rows[0]);
  if (n == 2) {
    const T* b = reinterpret_cast<const T*>(rows[1]);
    for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
  } else if (n == 4) {
    const T* b = reinterpret_cast<const T*>(rows[1]);
    const T* c = reinterpret_cast<const T*>(rows[2]);
    const T* d = reinterpret_cast<const T*>(rows[3]);
    for (std::size_t i = 0; i < count; ++i) out[i] = ((a[i] + b[i]) + c[i]) + d[i];
  } else {
    sum_any<T>(out, rows, n, count);
  }
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

}  // namespace holdfast::collective
