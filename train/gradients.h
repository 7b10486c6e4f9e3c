// Gradients: puts each parameter's gradient into the arena as soon as the backward pass has made
// it. Buckets whose gradients are all there are summed while the pass goes on.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "train/model.h"

namespace holdfast::train {

// Buckets are ranges of the arena's gradients of about 1 MB. Their order is from the last parameter
// to the first, as a backward pass usually makes them. They are passed to `reduce` in that order,
// whatever the order in which they fill: it must be the same on every rank.
class Gradients {
 public:
  using Reduce = std::function<void(std::span<float>)>;

  Gradients(const std::vector<NamedTensor>& parameters, arena::Arena& arena, Reduce reduce);
  ~Gradients();
  Gradients(Gradients&&) noexcept;
  Gradients& operator=(Gradients&&) = delete;

  void begin_step();  // Resets all gradients of the parameters.
  // Makes the backward pass of loss · scale, and passes all buckets to `reduce`. A parameter that
  // got no gradient has zeros. From then on the parameters' grad() are views of the arena.
  void backward(const torch::Tensor& loss, double scale);

 private:
  struct Parts;
  struct Hook;
  std::shared_ptr<Parts> parts_;
};

}  // namespace holdfast::train
