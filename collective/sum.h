// sum_rows, sum_past_caches, sum_in_place: add up one row of numbers per rank, in rank order.
#pragma once

#include <cstddef>
#include <span>

#include "collective/numbers.h"

namespace holdfast::collective {

[[nodiscard]] std::size_t size_of(Element element);
[[nodiscard]] const char* name_of(Element element);

// out[i] = ((rows[0][i] + rows[1][i]) + rows[2][i]) + ... for i < count. `out` may be one of the
// rows; otherwise nothing overlaps. Everything is aligned for the element's type. `soon` is null,
// or as much memory that is read next: it is asked for on the way, and is in the second-level cache
// then.
void sum_rows(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
              Element element, const std::byte* soon = nullptr);

// The same for an `out` that is none of the rows and that nobody reads soon. It is written past the
// caches, so that the processor need not read it first. A single row is copied.
void sum_past_caches(std::byte* out, std::span<const std::byte* const> rows, std::size_t count,
                     Element element, const std::byte* soon = nullptr);

// The same as sum_rows, but every row becomes the sum: one pass over memory instead of two.
void sum_in_place(std::span<std::byte* const> rows, std::size_t count, Element element);

}  // namespace holdfast::collective
