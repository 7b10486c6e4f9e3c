// The one reduction: several rows of numbers, one per rank, become one, always in rank order.
//
// out[i] = ((rows[0][i] op rows[1][i]) op rows[2][i]) op ... for i < count: the same bits on every
// machine, whatever the size and the alignment. Op::kAverage divides the sum by the number of rows.
// float16 and bfloat16 are reduced as float and rounded once. Requires: check() accepts the element
// and the op.
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

// `out` may be one of the rows. Otherwise nothing overlaps. `soon`: memory of the same size that is
// read next, to be prefetched into the second-level cache; or null. `past_caches` requires that
// `out` is none of the rows. A sum then bypasses the caches, so that the processor need not read
// `out` first; for memory that nobody reads soon.
void reduce_rows(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
                 Reduction how, const std::byte* soon = nullptr, bool past_caches = false);

// The same as reduce_rows, but every row becomes the result. For a sum that is one pass over memory
// instead of two.
void reduce_in_place(std::span<std::byte* const> rows, std::size_t count, Reduction how);

// A reduction can be done in parts, one after another, each of consecutive ranks. The bits are the
// same as from reduce_rows() with all rows (except for which of two different NaNs a sum of floats
// keeps). A partial result passes from part to part. Its numbers have the type of the computation,
// which takes this many bytes each.
[[nodiscard]] constexpr std::size_t partial_size(Element element) {
  const bool small = element == Element::kFloat16 || element == Element::kBfloat16;
  return small ? sizeof(float) : size_of(element);
}

// Does one part, of at least one row. `before`: the partial of the ranks before; null in the first
// part. `all`: 0, except in the last part: there the number of rows of all parts. `out`: gets the
// partial up to here, and may be `before`. In the last part it gets the result instead, and may be
// one of the rows, or `before` if partial and result have the same size.
void reduce_part(std::byte* out, const std::byte* before, std::span<const std::byte* const> rows,
                 std::size_t count, Reduction how, std::size_t all);

// Whether a row of the first part is a partial without conversion.
[[nodiscard]] inline bool is_own_partial(Element element) {
  return partial_size(element) == size_of(element);
}

// Whether the reduction of a single row has the same bits as the row. That is false for types where
// several bit patterns of NaN or true become one.
[[nodiscard]] bool keeps_one_row(Reduction how);

// memcpy() for data that nobody reads soon: bypasses the caches if that is faster.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace holdfast::collective
