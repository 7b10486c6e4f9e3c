// GradientAllocator: makes torch write a parameter's gradient directly into its place in the arena.
// So it need not be copied there, which would take a tenth of a step if the model is larger than
// the cache.
//
// Torch takes the memory of all tensors from one allocator. This class puts its own before that.
// During a Pass, an operation that makes a gradient gets that gradient's place in the arena (the
// place is lent). It gets other memory if it has two results of that size, or if a hook of the
// user's might keep the memory. Then the gradient is copied.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/torch.h>

#include <cstddef>
#include <memory>
#include <span>

namespace holdfast::train {

struct Loans;

// A gradient's place in the arena, and an owner that keeps it mapped.
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

  // Adds the next parameter and the place of its gradient. `accumulator`: the node to which torch
  // passes the gradient; it must live as long as this GradientAllocator.
  void add(const torch::Tensor& parameter, Room room, torch::autograd::Node* accumulator);

  // While a Pass lives, this thread makes a backward pass: every place may be lent, until filled()
  // is called for it.
  class Pass {
   public:
    explicit Pass(GradientAllocator& allocator);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Loans* before_;
  };
  // The gradient of parameter i is in its place: do not lend the place again in this pass.
  void filled(std::size_t i);
  // Whether a tensor that torch made lies in the place of parameter i; it may be any tensor.
  [[nodiscard]] bool is_lent(std::size_t i) const;

 private:
  std::unique_ptr<Loans> loans_;
};

}  // namespace holdfast::train
