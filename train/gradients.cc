#include "train/gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "holdfast/job.h"
#include "train/gradient_allocator.h"

namespace holdfast::train {
namespace {

constexpr std::size_t kBucketFloats = (std::size_t{1} << 20) / sizeof(float);

// A std::shared_ptr or, in later releases of torch, an intrusive pointer.
using Accumulator =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<torch::Tensor>()));

struct Bucket {
  std::span<float> range;
  std::size_t parameters = 0;
  std::size_t missing = 0;
};

}  // namespace

struct Gradients::Parts {
  void ready(std::size_t i);
  void lay_down(std::size_t i, const torch::Tensor& gradient);
  void finish();
  void hand_on();

  Reduce reduce;
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> views;  // The gradients' places in the arena, as tensors.
  std::vector<Bucket> buckets;
  std::vector<std::size_t> bucket_of;
  std::vector<bool> is_ready;
  std::size_t next = 0;  // The first bucket that was not passed to `reduce` yet.
  bool in_backward = false;
  std::vector<std::size_t> late;  // Gradients that are ready, but whose places are lent.
  // Held here, because a parameter has only a weak pointer to its accumulator.
  std::vector<Accumulator> accumulators;
  GradientAllocator allocator;
};

// Runs when a parameter's gradient of this backward pass is complete.
struct Gradients::Hook : torch::autograd::FunctionPostHook {
  Hook(const std::shared_ptr<Parts>& p, std::size_t index) : parts(p), i(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    const auto alive = parts.lock();
    if (alive && alive->in_backward) alive->ready(i);
    return outputs;
  }
  std::weak_ptr<Parts> parts;  // Graphs that the user holds keep the hook alive.
  std::size_t i;
};

Gradients::Gradients(const std::vector<NamedTensor>& parameters, arena::Arena& arena, Reduce reduce)
    : parts_(std::make_shared<Parts>()) {
  Parts& p = *parts_;
  p.reduce = std::move(reduce);
  p.is_ready.resize(parameters.size());
  p.bucket_of.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    p.parameters.push_back(parameters[i].tensor);
    p.views.push_back(tensor_in(arena, arena.gradient(i), parameters[i].tensor.sizes()));
    p.accumulators.push_back(torch::autograd::impl::grad_accumulator(parameters[i].tensor));
    p.accumulators.back()->add_post_hook(std::make_unique<Hook>(parts_, i));
    p.allocator.add(p.parameters.back(), {arena.gradient(i), arena.memory()},
                    p.accumulators.back().get());
  }
  const arena::Layout& layout = arena.layout();
  for (std::size_t end = parameters.size(), i = end; i-- > 0;) {
    p.bucket_of[i] = p.buckets.size();
    const std::size_t floats = layout.offset(end) - layout.offset(i);
    if (floats < kBucketFloats && i > 0) continue;
    p.buckets.push_back({arena.gradients().subspan(layout.offset(i), floats), end - i, 0});
    end = i;
  }
}

Gradients::~Gradients() = default;
Gradients::Gradients(Gradients&&) noexcept = default;

void Gradients::begin_step() {
  Parts& p = *parts_;
  for (auto& parameter : p.parameters) parameter.mutable_grad().reset();
  p.is_ready.assign(p.is_ready.size(), false);
  for (auto& bucket : p.buckets) bucket.missing = bucket.parameters;
  p.next = 0;
}

void Gradients::backward(const torch::Tensor& loss, double scale) {
  Parts& p = *parts_;
  p.late.clear();
  p.in_backward = true;
  try {
    const GradientAllocator::Pass pass(p.allocator);
    loss.backward(torch::full_like(loss, scale));
  } catch (...) {
    p.in_backward = false;
    throw;
  }
  p.in_backward = false;
  p.finish();
}

// Does after the pass what could not be done within it.
void Gradients::Parts::finish() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {  // Comes first: ready() may add to `late`.
    if (!is_ready[i]) ready(i);
  }
  for (const std::size_t i : late) {
    if (allocator.is_lent(i)) {
      throw Failure(
          cat("a tensor that the backward pass has made outlives it in the place of the "
              "gradient of parameter ",
              i, ": keep a clone() of it instead"));
    }
    lay_down(i, parameters[i].grad());
  }
  hand_on();
  HF_ASSERT(next == buckets.size());  // Else a bucket would be committed without its sum.
}

void Gradients::Parts::ready(std::size_t i) {
  if (is_ready[i]) {
    throw Failure(
        "a parameter got its gradient in two parts within one backward pass (re-entrant "
        "checkpointing?), but its first part may be summed already");
  }
  const torch::NoGradGuard no_grad;
  is_ready[i] = true;
  const torch::Tensor gradient = parameters[i].grad();
  const bool in_place =
      gradient.defined() && gradient.has_storage() && gradient.data_ptr() == views[i].data_ptr();
  allocator.filled(i);
  if (allocator.is_lent(i) && !in_place) {
    late.push_back(i);  // The gradient is a copy that torch made; the original is still in place.
    return;
  }
  lay_down(i, gradient);
  hand_on();
}

// A gradient that torch made elsewhere is copied into its place. To let torch add it to zeros there
// would take one more pass over memory, and torch would copy it itself.
void Gradients::Parts::lay_down(std::size_t i, const torch::Tensor& gradient) {
  torch::Tensor& view = views[i];
  if (!gradient.defined()) {
    view.zero_();
  } else if (gradient.is_sparse()) {
    view.copy_(gradient.to_dense());
  } else if (gradient.scalar_type() != torch::kFloat || !gradient.is_contiguous()) {
    view.copy_(gradient.data_ptr() == view.data_ptr() ? gradient.clone() : gradient);
  } else if (gradient.data_ptr() != view.data_ptr()) {
    std::memcpy(view.data_ptr(), gradient.data_ptr(), view.nbytes());
  }
  parameters[i].mutable_grad() = view;
  --buckets[bucket_of[i]].missing;
}

void Gradients::Parts::hand_on() {
  while (next < buckets.size() && buckets[next].missing == 0) {
    if (reduce) reduce(buckets[next].range);
    ++next;
  }
}

}  // namespace holdfast::train
