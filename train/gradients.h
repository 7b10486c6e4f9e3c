// Gradients: puts each parameter's gradient into the arena as soon as the backward pass has it.
// Full buckets are summed while the pass goes on.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "train/model.h"

namespace holdfast::train {

// Buckets are ranges of the arena's gradients of about 1 MB, from the last parameter to the first,
// the order in which a backward pass usually gets them. They are handed on in that order, whatever
// the order in which they fill: every rank must hand on the same.
class Gradients {
 public:
  using Reduce = std::function<void(std::span<float>)>;

  Gradients(const std::vector<NamedTensor>& parameters, arena::Arena& arena, Reduce reduce);
  ~Gradients();
  Gradients(Gradients&&) noexcept;
  Gradients& operator=(Gradients&&) = delete;

  void begin_step();  // Parameters have no gradients.
  // The backward pass of loss · scale. Ends with all buckets handed on; where a parameter got no
  // gradient it is zero. From then on the parameters' grad() are views of the arena.
  void backward(const torch::Tensor& loss, double scale);

 private:
  struct Parts;
  struct Hook;
  std::shared_ptr<Parts> parts_;
};

}  // namespace holdfast::train
