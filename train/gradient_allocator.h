// GradientAllocator: has torch make a parameter's gradient in its place in the arena. So it need
// not be copied there, which would take a tenth of a step if the model is larger than the cache.
//
// Torch takes all memory of tensors from one allocator. Ours stands before it. During our backward
// pass, an operation that makes a gradient gets this gradient's place. It gets other memory if it
// has two results of that size, or if a hook of the user's might keep the memory. Then the gradient
// is copied.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <span>

namespace holdfast::train {

struct Loans;

// A gradient's place, and what keeps it mapped.
struct Room {
  std::span<float> range;
  std::shared_ptr<const void> keeper;
};

class GradientAllocator {
 public:
  GradientAllocator();
  ~GradientAllocator();
  GradientAllocator(const GradientAllocator&) = delete;
  GradientAllocator& operator=(const GradientAllocator&) = delete;

  // The next parameter's. `accumulator`: what torch hands its gradient to; it must live as
  // long as this GradientAllocator.
  void add(const torch::Tensor& parameter, Room room, torch::autograd::Node* accumulator);

  // While it lives, what this thread computes is a backward pass: every place may be lent, until it
  // is filled().
  class Pass {
   public:
    explicit Pass(GradientAllocator& allocator);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Loans* before_;
  };
  void filled(std::size_t i);
  // A tensor that is not the gradient of i lives in i's place.
  [[nodiscard]] bool is_lent(std::size_t i) const;

 private:
  std::unique_ptr<Loans> loans_;
};

}  // namespace holdfast::train
