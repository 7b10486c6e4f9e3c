#include "collective/sum.h"

#include <cstdint>
#include <cstring>

#include "base/assert.h"

// One build serves every x86-64: the loader picks the widest form that the processor has. The bits
// are the same in all forms: no contraction to fused multiply-add, no reordering. Not with a
// sanitizer, whose code would run before the loader can pick.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(HOLDFAST_SANITIZED)
#define HF_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define HF_CLONES
#endif

// Streaming stores. Not with a sanitizer, which would not see them.
#if defined(__SSE2__) && !defined(HOLDFAST_SANITIZED)
#include <emmintrin.h>
#define HF_STREAMS 1
#else
#define HF_STREAMS 0
#endif

namespace holdfast::collective {
namespace {

// Inlined into each clone of its caller, so built for that machine.
#define HF_INLINE inline __attribute__((always_inline))

// Bytes that are prefetched ahead: the hardware's own prefetching stops at each page's end.
constexpr std::size_t kAhead = 2048;
constexpr std::size_t kLine = 64;
constexpr int kSecondLevel = 2;  // The locality argument of __builtin_prefetch.

// The rows of a sum, and where its result goes. In the templates below, kRanks is the number of
// rows, or 0 if it is known at run time only. kOuts is kOne: one result; kPast: one result, written
// past the caches, at a multiple of 16; or kAll: the result goes into every row.
struct Sum {
  const std::byte* const* rows;
  std::byte* const* outs;
  std::size_t ranks;
  const std::byte* soon;
};
enum class Outs : std::uint8_t { kOne, kPast, kAll };

// Writes one V past the caches, if there is such a store for its size.
template <class V>
HF_INLINE void stream(std::byte* out, const V& sum) {
#if HF_STREAMS
  if constexpr (sizeof(V) % kStreamed == 0) {
    __m128i parts[sizeof(V) / kStreamed];
    std::memcpy(parts, &sum, sizeof(V));
    for (const __m128i& part : parts) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out), part);
      out += kStreamed;
    }
    return;
  }
#endif
  std::memcpy(out, &sum, sizeof(V));
}

// Sums one V, a number or a vector of them, at byte `at`. All rows are read there before the sum is
// written, so an out may be a row.
template <class V, std::size_t kRanks, Outs kOuts>
HF_INLINE void sum_at(const Sum& s, std::size_t at) {
  const std::size_t ranks = kRanks != 0 ? kRanks : s.ranks;
  V sum;
  std::memcpy(&sum, s.rows[0] + at, sizeof(V));  // One instruction, whatever the alignment.
  for (std::size_t k = 1; k < ranks; ++k) {
    V row;
    std::memcpy(&row, s.rows[k] + at, sizeof(V));
    sum = sum + row;
  }
  if (kOuts == Outs::kPast) return stream(s.outs[0] + at, sum);
  const std::size_t outs = kOuts == Outs::kOne ? 1 : ranks;
  for (std::size_t k = 0; k < outs; ++k) std::memcpy(s.outs[k] + at, &sum, sizeof(V));
}

template <class T, std::size_t kRanks, Outs kOuts>
HF_INLINE void sum_bytes(const Sum& given, std::size_t bytes) {
  using Lanes [[gnu::vector_size(32)]] = T;
  const std::size_t ranks = kRanks != 0 ? kRanks : given.ranks;
  Sum s = given;
  // With few ranks, a local copy of the addresses stays in registers. Else the compiler has to load
  // them again after each store. With a single out that was no faster.
  std::byte* rows[kRanks + 1];
  if (kRanks != 0 && kOuts == Outs::kAll) {
    for (std::size_t k = 0; k < kRanks; ++k) rows[k] = given.outs[k];
    s.rows = rows;
    s.outs = rows;
  }
  std::size_t at = 0;
  // Never prefetch beyond the end: another rank may be writing there.
  for (; at + kAhead + kLine <= bytes; at += kLine) {
    for (std::size_t k = 0; k < ranks; ++k) {
      __builtin_prefetch(s.rows[k] + at + kAhead, kOuts == Outs::kAll ? 1 : 0);
    }
    if (kOuts == Outs::kOne) __builtin_prefetch(s.outs[0] + at + kAhead, 1);
    if (kOuts != Outs::kAll && s.soon != nullptr) __builtin_prefetch(s.soon + at, 0, kSecondLevel);
    for (std::size_t i = 0; i < kLine; i += sizeof(Lanes)) sum_at<Lanes, kRanks, kOuts>(s, at + i);
  }
  for (; at + sizeof(Lanes) <= bytes; at += sizeof(Lanes)) sum_at<Lanes, kRanks, kOuts>(s, at);
  for (; at < bytes; at += sizeof(T)) sum_at<T, kRanks, kOuts>(s, at);
}

template <class T, Outs kOuts>
HF_INLINE void sum_of(const Sum& s, std::size_t bytes) {
  if (s.ranks == 2) return sum_bytes<T, 2, kOuts>(s, bytes);
  if (s.ranks == 3) return sum_bytes<T, 3, kOuts>(s, bytes);
  if (s.ranks == 4) return sum_bytes<T, 4, kOuts>(s, bytes);
  sum_bytes<T, 0, kOuts>(s, bytes);
}

// Whole numbers are summed as unsigned ones, whose overflow wraps around.
template <Outs kOuts>
HF_INLINE void sum_elements(const Sum& s, std::size_t bytes, Element element) {
  switch (element) {
    case Element::kFloat32:
      return sum_of<float, kOuts>(s, bytes);
    case Element::kFloat64:
      return sum_of<double, kOuts>(s, bytes);
    case Element::kInt32:
      return sum_of<std::uint32_t, kOuts>(s, bytes);
    case Element::kInt64:
      return sum_of<std::uint64_t, kOuts>(s, bytes);
    default:
      break;
  }
  HF_ASSERT(false);  // See is_summed().
}

HF_CLONES void sum_into_one(const Sum& s, std::size_t bytes, Element element) {
  sum_elements<Outs::kOne>(s, bytes, element);
}
HF_CLONES void sum_past(const Sum& s, std::size_t bytes, Element element) {
  sum_elements<Outs::kPast>(s, bytes, element);
}
HF_CLONES void sum_into_all(const Sum& s, std::size_t bytes, Element element) {
  sum_elements<Outs::kAll>(s, bytes, element);
}

}  // namespace

void sum_rows(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
              Element element, const std::byte* soon, bool past_caches) {
  const Sum sum{rows.data(), &out, rows.size(), soon};
  const bool aligned = reinterpret_cast<std::uintptr_t>(out) % kStreamed == 0;
  if (!past_caches || !aligned) return sum_into_one(sum, count * size_of(element), element);
  sum_past(sum, count * size_of(element), element);
#if HF_STREAMS
  _mm_sfence();  // Streaming stores are weakly ordered: other threads must see them from here on.
#endif
}

void sum_in_place(std::span<std::byte* const> rows, std::size_t count, Element element) {
  sum_into_all({rows.data(), rows.data(), rows.size(), nullptr}, count * size_of(element), element);
}

}  // namespace holdfast::collective
