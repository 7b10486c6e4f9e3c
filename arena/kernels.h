// The fused updates with line undo. For each element, in float32, in this order and without fused
// multiply-add, so that the bits are the same on every machine and thread count:
//
//   g = gradient_scale·g
//   g = g + weight_decay·w                          all but kAdamW, if weight_decay is not 0
//   w = w·(1 - learning_rate·weight_decay)          kAdamW, if weight_decay is not 0
//   kSgd       w = w + (-learning_rate)·g
//   kMomentum  m = momentum·m + g;  w = w + (-learning_rate)·m
//   kAdam*     m = m + (1 - beta1)·(g - m)
//              v = beta2·v + ((1 - beta2)·g)·g
//              w = w + ((-step_size)·m) / (sqrt(v) / correction + epsilon)
//              step_size = learning_rate / (1 - beta1^count), correction = sqrt(1 - beta2^count)
//
// Scalars are computed in double and rounded to float once, as PyTorch does. The order is that of
// PyTorch's single-tensor path. But PyTorch's vectorised kernels fuse some multiply-adds, and its
// lerp has another form for beta1 <= 0.5. So the last bit may differ.
#pragma once

#include <span>

#include "arena/format.h"

namespace holdfast::arena {

// Whole regions; m and v are null where the optimizer has none.
struct Streams {
  float* w = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  float* g = nullptr;
};

// The factor that brings `gradients`, a whole region, to a norm of `clip_norm` at most, as in
// PyTorch's clip_grad_norm_: clip_norm / (norm + 1e-6) if that is below 1, else 1; NaN or 0 where
// the norm is NaN or infinite. 1 if clip_norm is 0. The squares are added up in double, element i
// to sum i mod 16, then these in order; so the bits are the same on every machine.
[[nodiscard]] double gradient_scale(double clip_norm, std::span<const float> gradients);

// Updates the slot's lines from slot.progress to slot.end. First it restores a line that a dead
// thread left open. SIGKILL may end it anywhere; then it is called again.
void update_lines(Optimizer optimizer, const UpdateArguments& arguments, const Streams& streams,
                  Slot& slot);

}  // namespace holdfast::arena
