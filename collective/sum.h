// The fast paths of reduce.h: sums of the types that processors add by vectors.
#pragma once

#include <cstddef>
#include <span>

#include "collective/numbers.h"

namespace holdfast::collective {

// The types that the functions below sum.
[[nodiscard]] constexpr bool is_summed(Element e) {
  return e == Element::kFloat32 || e == Element::kFloat64 || e == Element::kInt32 ||
         e == Element::kInt64;
}

// out[i] = ((rows[0][i] + rows[1][i]) + rows[2][i]) + ... for i < count. The other arguments are
// those of reduce_rows(). `past_caches` has an effect only if `out` lies at a multiple of
// kStreamed.
inline constexpr std::size_t kStreamed = 16;
void sum_rows(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
              Element element, const std::byte* soon, bool past_caches);

// The same as sum_rows, but every row becomes the sum: one pass over memory instead of two.
void sum_in_place(std::span<std::byte* const> rows, std::size_t count, Element element);

}  // namespace holdfast::collective
