// The operations of c.h that a collective::Group does not have itself, made of those that it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "capi/error.h"
#include "collective/group.h"

namespace holdfast::capi {

struct Elements {
  void* data = nullptr;
  std::size_t count = 0;
  hf_dtype dtype = HF_FLOAT32;
};

// What an outcome means to a caller; `what` names the operation.
[[nodiscard]] Verdict verdict_of(collective::Outcome outcome, const collective::Group& group);

// For all of these: every member calls, with the same sizes, type and operation.

// Sums what all give in `from` into `to`. The two are the same memory, or do not overlap.
[[nodiscard]] Verdict all_reduce(collective::Group& group, const std::byte* from, Elements to,
                                 hf_op op);
[[nodiscard]] Verdict reduce_scatter(collective::Group& group, const std::byte* all, Elements mine,
                                     hf_op op);

struct Blocks {
  std::byte* data = nullptr;
  std::vector<std::uint64_t> bytes;  // By rank; the blocks lie one after another.
};
// `same`: every rank knows that all blocks have the same size. Then they need not tell each other.
[[nodiscard]] Verdict all_to_all(collective::Group& group, const Blocks& send,
                                 const Blocks& receive, bool same);

}  // namespace holdfast::capi
