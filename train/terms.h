// Terms: what all ranks have to train with alike, beside the model. With a batch or seed of its own
// a rank would take other samples than the rest leave it; with a learning rate of its own its
// parameters would drift from theirs, and nobody would see it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "arena/arena.h"

namespace holdfast::train {

// As they are exchanged between the ranks, byte for byte.
struct Terms {
  std::uint64_t samples = 0;  // In the data set.
  std::uint64_t batch = 0;
  std::uint64_t shuffle_seed = 0;
  std::uint64_t epochs = 0;
  std::uint64_t max_steps = 0;
  arena::UpdateArguments update;  // Of the step under way: a schedule counts by what it gives.
};

// One sentence that names the first term that differs and the first rank where it is not rank 0's,
// and says what to do. Empty if all are alike. ranks[i] is rank i's.
[[nodiscard]] std::string disagreement(std::span<const Terms> ranks);

}  // namespace holdfast::train
