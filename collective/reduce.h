// The one reduction: several rows of numbers, one per rank, become one, always in rank order.
//
// out[i] = ((rows[0][i] op rows[1][i]) op rows[2][i]) op ... for i < count: the same bits on every
// machine, whatever the size and the alignment. Op::kAverage divides the sum by the number of rows.
// Small floats are reduced as float and rounded once. The element and the op fit together (see
// check()).
#pragma once

#include <cstddef>
#include <span>

#include "collective/numbers.h"

namespace holdfast::collective {

// What is reduced, and how.
struct Reduction {
  Element element;
  Op op;
};

// `out` may be one of the rows. Otherwise nothing overlaps. `soon` is null, or as much memory that
// is read next: it is asked for on the way, and is in the second-level cache then. `past_caches`:
// `out` is none of the rows, and nobody reads it soon. Then a sum is written past the caches, so
// that the processor need not read `out` first.
void reduce_rows(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
                 Reduction how, const std::byte* soon = nullptr, bool past_caches = false);

// The same as reduce_rows, but every row becomes the result. For a sum that is one pass over memory
// instead of two.
void reduce_in_place(std::span<std::byte* const> rows, std::size_t count, Reduction how);

// A reduction can be done in parts, each of consecutive ranks, one after another: the same bits as
// from reduce_rows() with all rows (but for which of two different NaNs a sum of floats keeps).
// Between the parts goes a partial: the numbers as they are reckoned with, in so many bytes each.
[[nodiscard]] constexpr std::size_t partial_size(Element element) {
  const bool small = element == Element::kFloat16 || element == Element::kBfloat16;
  return small ? sizeof(float) : size_of(element);
}

// One part. `before`: the partial of the ranks before; null for the first part. `out`: the partial
// up to here; it may be `before`. In the last part it is the result, of so many rows as `all` says;
// it may be one of the rows then, or `before` if the numbers are of the same size in both. 0: there
// are more parts to come. At least one row.
void reduce_part(std::byte* out, const std::byte* before, std::span<const std::byte* const> rows,
                 std::size_t count, Reduction how, std::size_t all);

// Whether one row alone is a partial as it is.
[[nodiscard]] inline bool is_own_partial(Element element) {
  return partial_size(element) == size_of(element);
}

// Whether one row alone is its own result, bit for bit. It is not where NaN or true has many forms
// that become one.
[[nodiscard]] bool keeps_one_row(Reduction how);

// Copies what nobody reads soon, past the caches where that is faster.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace holdfast::collective
