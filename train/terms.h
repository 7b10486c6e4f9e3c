// Terms: the options, beside the model, that have to be equal on all ranks. A rank with another
// batch size or seed would take samples that other ranks take, too. A rank with another learning
// rate would have other parameters after the update.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "arena/arena.h"

namespace holdfast::train {

// The ranks exchange these bytes.
struct Terms {
  std::uint64_t samples = 0;  // In the data set.
  std::uint64_t batch = 0;
  std::uint64_t shuffle_seed = 0;
  std::uint64_t epochs = 0;
  std::uint64_t max_steps = 0;
  arena::UpdateArguments update;  // For the step under way; of a schedule, its value is compared.
};

// One sentence that names the first rank whose terms differ from rank 0's, and the first such term,
// and says what to do. Empty if all are equal. ranks[i]: the terms of rank i.
[[nodiscard]] std::string disagreement(std::span<const Terms> ranks);

}  // namespace holdfast::train
