// The fast paths of reduce.h: sums of the types that processors add many of at a time.
#pragma once

#include <cstddef>
#include <span>

#include "collective/numbers.h"

namespace holdfast::collective {

// The types that these know.
[[nodiscard]] constexpr bool is_summed(Element e) {
  return e == Element::kFloat32 || e == Element::kFloat64 || e == Element::kInt32 ||
         e == Element::kInt64;
}

// out[i] = ((rows[0][i] + rows[1][i]) + rows[2][i]) + ... for i < count. `out` may be one of the
// rows; otherwise nothing overlaps. `soon` is null, or as much memory that is read next: it is
// asked for on the way, and is in the second-level cache then.
void sum_rows(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
              Element element, const std::byte* soon = nullptr);

// The same for an `out` that is none of the rows and that nobody reads soon. It is written past the
// caches, so that the processor need not read it first, if it lies at a multiple of kStreamed.
inline constexpr std::size_t kStreamed = 16;
void sum_past_caches(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
                     Element element, const std::byte* soon = nullptr);

// The same as sum_rows, but every row becomes the sum: one pass over memory instead of two.
void sum_in_place(std::span<std::byte* const> rows, std::size_t count, Element element);

}  // namespace holdfast::collective
