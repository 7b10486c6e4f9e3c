// Gradients: they get into the arena with torch's own bits, also if user code looks at them.
#include "train/gradients.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>
#include <torch/version.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "holdfast/job.h"
#include "train/gradient_allocator.h"

namespace holdfast::train {
namespace {

using Loss = std::function<torch::Tensor()>;

torch::Tensor numbers(std::int64_t rows, std::int64_t columns) {
  torch::manual_seed(static_cast<std::uint64_t>(rows * 1000 + columns));
  return torch::randn({rows, columns});
}

torch::Tensor parameter(std::int64_t rows, std::int64_t columns) {
  return numbers(rows, columns).requires_grad_();
}

class GradientsTest : public testing::Test {
 protected:
  void open(std::vector<torch::Tensor> parameters, const Gradients::Reduce& reduce = nullptr) {
    arena::Layout layout;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      named_.push_back({cat("p", i), parameters[i]});
      layout.parameters.push_back(
          {named_.back().name, static_cast<std::uint64_t>(parameters[i].numel())});
    }
    auto arena = arena::Arena::open(path_, layout, 1);
    ASSERT_TRUE(arena) << arena.error().what;
    arena_.emplace(*std::move(arena));
    gradients_.emplace(named_, *arena_, reduce);
  }
  void TearDown() override {
    gradients_.reset();
    std::filesystem::remove(path_);
  }

  [[nodiscard]] std::vector<torch::Tensor> by_torch(const Loss& loss) const {
    std::vector<torch::Tensor> parameters;
    for (const auto& p : named_) parameters.push_back(p.tensor);
    return torch::autograd::grad({loss()}, parameters);
  }
  void backward(const torch::Tensor& loss) {
    gradients_->begin_step();
    gradients_->backward(loss, 1);
  }
  // Two passes: the second must not see what the first left.
  void expect_torchs(const Loss& loss) {
    const auto expected = by_torch(loss);
    for (int pass = 0; pass < 2; ++pass) {
      backward(loss());
      for (std::size_t i = 0; i < named_.size(); ++i) {
        const torch::Tensor gradient = named_[i].tensor.grad();
        EXPECT_TRUE(torch::equal(gradient, expected[i])) << "parameter " << i << ", pass " << pass;
        EXPECT_EQ(gradient.data_ptr(), arena_->gradient(i).data());
      }
    }
  }

  std::string path_ =
      std::filesystem::temp_directory_path() / cat("holdfast-gradients-", ::getpid(), ".arena");
  std::vector<NamedTensor> named_;
  std::optional<arena::Arena> arena_;
  std::optional<Gradients> gradients_;
};

TEST_F(GradientsTest, OfLayersAreTorchs) {
  const auto x = numbers(16, 96);
  const auto w = parameter(80, 96);
  const auto v = parameter(64, 80);
  const auto bias = parameter(1, 80);
  open({w, bias, v});
  expect_torchs([&] {
    const auto hidden = torch::relu(torch::nn::functional::linear(x, w, bias.view({80})));
    return torch::nn::functional::linear(hidden, v).square().mean();
  });
}

// Here a layer's result, and so the gradient of that result, has the size of its weights.
TEST_F(GradientsTest, OfEquallyLargeTensorsAreNotMixedUp) {
  const auto x = parameter(96, 96);
  const auto w = parameter(96, 96);
  const auto v = parameter(96, 96);
  open({w, v, x});
  expect_torchs([&] { return x.mm(w.t()).sigmoid().mm(v.t()).mul(w).square().mean(); });
}

// Torch wants a gradient to have its parameter's strides. It copies this one, and still holds the
// original at that time.
TEST_F(GradientsTest, ThatTorchCopiesAreLaidDownLate) {
  const auto w = parameter(80, 96);
  const auto c = numbers(96, 80);
  open({w});
  expect_torchs([&] { return (w.t() * c).sum(); });
}

TEST_F(GradientsTest, OfAParameterUsedTwiceAreSums) {
  const auto w = parameter(96, 80);
  open({w});
  expect_torchs([&] { return (numbers(16, 96).mm(w) * numbers(16, 96).add(1).mm(w)).mean(); });
}

TEST_F(GradientsTest, OfUnusedParametersAreZero) {
  const auto w = parameter(96, 80);
  const auto unused = parameter(96, 80);
  open({w, unused});
  backward(w.square().sum());
  EXPECT_TRUE(torch::equal(w.grad(), 2 * w));
  EXPECT_EQ(unused.grad().abs().max().item<float>(), 0);
}

// Sums over ranks do not change a tensor that a user's hook has kept.
TEST_F(GradientsTest, KeptByHooksStayAsTheyWere) {
  const auto x = numbers(16, 96);
  auto w = parameter(80, 96);
  auto v = parameter(64, 80);
  const auto twice = [](std::span<float> range) {
    for (float& value : range) value *= 2;
  };
  open({w, v}, twice);
  torch::Tensor doubled;
  const auto loss = [&] {
    doubled = v * 2;
    return x.mm(w.t()).mm(doubled.t()).square().mean();
  };
  const auto expected = by_torch(loss);
  torch::Tensor kept;
  w.register_hook([&](const torch::Tensor& gradient) { kept = gradient; });
  const auto again = loss();
  doubled.retain_grad();
  backward(again);
  EXPECT_TRUE(torch::equal(w.grad(), 2 * expected[0]));
  EXPECT_TRUE(torch::equal(v.grad(), 2 * expected[1]));
  EXPECT_TRUE(torch::equal(kept, expected[0]));
  EXPECT_TRUE(torch::equal(doubled.grad() * 2, expected[1]));
}

// A function whose backward() computes and keeps a gradient of its own, during the outer pass.
struct Keeper : torch::autograd::Function<Keeper> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const torch::AutoGradMode on(true);
    kept = torch::autograd::grad({numbers(16, 96).mm(of.t()).square().mean()}, {of})[0];
    return gradients;
  }
  static inline torch::Tensor of;
  static inline torch::Tensor kept;
};

// If a kept tensor lies in a parameter's place, and torch makes no gradient for that parameter, its
// bucket could never be complete.
TEST_F(GradientsTest, WhosePlaceSomebodyKeepsAreAnErrorAndNoSilence) {
  const auto w = parameter(80, 96);
  const auto v = parameter(80, 96);
  std::size_t summed = 0;
  open({v, w}, [&](std::span<float>) { ++summed; });
  Keeper::of = w;
  const auto loss = Keeper::apply(numbers(16, 96).mm(v.t())).square().mean();
  gradients_->begin_step();
  bool told = false;
  try {
    gradients_->backward(loss, 1);
  } catch (const Failure&) {
    told = true;
  }
  EXPECT_NE(told, summed > 0);  // An error, if this release of torch lets the place be lent.
  EXPECT_TRUE(told || torch::equal(w.grad(), torch::zeros_like(w)));
  Keeper::of = torch::Tensor();
  Keeper::kept = torch::Tensor();
}

struct NoHook : torch::autograd::FunctionPostHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    return outputs;
  }
};

TEST(GradientAllocator, HasTorchMakeAGradientInItsPlaceDuringAPass) {
  const auto w = parameter(80, 96);
  const auto accumulator = torch::autograd::impl::grad_accumulator(w);
  accumulator->add_post_hook(std::make_unique<NoHook>());
  torch::Tensor place = torch::zeros({80, 96});
  GradientAllocator allocator;
  const auto floats = static_cast<std::size_t>(place.numel());
  allocator.add(w, {{place.data_ptr<float>(), floats}, nullptr}, accumulator.get());
  const auto backward = [&] {
    w.mutable_grad().reset();
    torch::nn::functional::linear(numbers(16, 96), w).square().mean().backward();
  };
  backward();
  EXPECT_NE(w.grad().data_ptr(), place.data_ptr());
  const torch::Tensor expected = w.grad();
  {
    const GradientAllocator::Pass pass(allocator);
    backward();
  }
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  EXPECT_EQ(w.grad().data_ptr(), place.data_ptr());
  EXPECT_TRUE(allocator.is_lent(0));
#endif
  EXPECT_TRUE(torch::equal(w.grad(), expected));
  w.mutable_grad().reset();
  EXPECT_FALSE(allocator.is_lent(0));
}

}  // namespace
}  // namespace holdfast::train
