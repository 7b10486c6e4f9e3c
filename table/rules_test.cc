// Each rule against a plain loop in double, and against what the frameworks compute.
#include "table/rules.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/prng.h"

namespace holdfast::table {
namespace {

using Rule = Optimizer::Rule;

constexpr std::size_t kValues = 19;
constexpr int kSteps = 6;

float gradient(int step, std::size_t i) {
  return static_cast<float>(derive(3, step, i) % 2000) * 1e-3F - 1;
}

std::vector<float> trained(const Optimizer& optimizer, double decay, Type type = Type::kFloat32) {
  const Spec spec{.name = "a", .values = kValues, .type = type, .optimizer = optimizer};
  std::vector<std::byte> row(spec.row_bytes());
  const std::vector<float> start(kValues, 0.5F);
  write_values(spec, start, row.data());
  begin_state(spec, row.data());
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<float> gradients;
    for (std::size_t i = 0; i < kValues; ++i) gradients.push_back(gradient(step, i));
    const auto count = static_cast<std::uint64_t>(step);
    Update(spec, {0.1, decay, count}).apply(row.data(), gradients.data());
  }
  std::vector<float> values(kValues);
  read_values(spec, row.data(), values);
  return values;
}

// What `one` makes of a value, its state (two numbers, which begin with `first` and 0), and a
// gradient with decay, in each step.
template <class One>
void expect_near(const Optimizer& optimizer, double decay, double first, One one) {
  const auto got = trained(optimizer, decay);
  for (std::size_t i = 0; i < kValues; ++i) {
    double w = 0.5;
    double a = first;
    double b = 0;
    for (int step = 1; step <= kSteps; ++step) {
      const double raw = gradient(step, i);
      const double g = optimizer.rule == Rule::kAdamW ? raw : raw + decay * w;
      one(w, a, b, g, step);
    }
    EXPECT_NEAR(got[i], w, 2e-6 * std::max(1.0, std::abs(w))) << "value " << i;
  }
}

class Rules : public ::testing::TestWithParam<double> {};

TEST_P(Rules, Sgd) {
  expect_near({.rule = Rule::kSgd}, GetParam(), 0,
              [](double& w, double&, double&, double g, int) { w -= 0.1 * g; });
}

TEST_P(Rules, Momentum) {
  for (const bool nesterov : {false, true}) {
    for (const Formula formula : {Formula::kTorch, Formula::kMindSpore}) {
      const Optimizer optimizer{
          .rule = Rule::kMomentum, .formula = formula, .nesterov = nesterov, .momentum = 0.9};
      expect_near(optimizer, GetParam(), 0, [&](double& w, double& m, double&, double g, int) {
        m = 0.9 * m + g;
        w -= 0.1 * (nesterov ? g + 0.9 * m : m);
      });
    }
  }
}

TEST_P(Rules, Adagrad) {
  const Optimizer optimizer{.rule = Rule::kAdagrad, .epsilon = 1e-6, .initial_accumulator = 0.2};
  expect_near(optimizer, GetParam(), 0.2, [](double& w, double& s, double&, double g, int) {
    s += g * g;
    w -= 0.1 * g / (std::sqrt(s) + 1e-6);
  });
}

TEST_P(Rules, AdamOfTorchAndOfMindSpore) {
  for (const Rule rule : {Rule::kAdam, Rule::kAdamW}) {
    for (const Formula formula : {Formula::kTorch, Formula::kMindSpore}) {
      const Optimizer optimizer{.rule = rule, .formula = formula, .epsilon = 1e-3};
      expect_near(optimizer, GetParam(), 0, [&](double& w, double& m, double& v, double g, int t) {
        if (rule == Rule::kAdamW) w *= 1 - 0.1 * GetParam();
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        const double first = 1 - std::pow(0.9, t);
        const double second = std::sqrt(1 - std::pow(0.999, t));
        w -= formula == Formula::kTorch ? 0.1 / first * m / (std::sqrt(v) / second + 1e-3)
                                        : 0.1 * second / first * m / (std::sqrt(v) + 1e-3);
      });
    }
  }
}

TEST_P(Rules, Ftrl) {
  const Optimizer optimizer{.rule = Rule::kFtrl, .l1 = 0.3, .l2 = 0.2, .initial_accumulator = 0.1};
  expect_near(optimizer, GetParam(), 0.1, [](double& w, double& s, double& z, double g, int) {
    const double before = std::sqrt(s);
    s += g * g;
    z += g - (std::sqrt(s) - before) / 0.1 * w;
    const double sign = z > 0 ? 1 : -1;
    w = std::abs(z) > 0.3 ? (sign * 0.3 - z) / (std::sqrt(s) / 0.1 + 2 * 0.2) : 0;
  });
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutDecay, Rules, ::testing::Values(0.0, 0.05));

// What torch 2.13.0 and MindSpore 2.10.0 come to on CPU, from 0.5, with a learning rate of 0.1.
TEST(RulesOfFrameworks, ComeToTheirNumbers) {
  struct Case {
    const char* name;
    Optimizer optimizer;
    double decay;
    float want[3];
  };
  const Formula ms = Formula::kMindSpore;
  const Case cases[] = {
      {"torch SGD", {.rule = Rule::kSgd}, 0.05, {0.467536211F, 0.498600513F, 0.492639422F}},
      {"torch SGD, momentum",
       {.rule = Rule::kMomentum, .momentum = 0.9},
       0.05,
       {0.465983659F, 0.523373067F, 0.485786825F}},
      {"torch SGD, Nesterov",
       {.rule = Rule::kMomentum, .nesterov = true, .momentum = 0.9},
       0.05,
       {0.437361896F, 0.519218564F, 0.479933769F}},
      {"torch Adam",
       {.rule = Rule::kAdam, .epsilon = 1e-3},
       0.05,
       {0.419264495F, 0.601353228F, 0.219602227F}},
      {"torch AdamW",
       {.rule = Rule::kAdamW, .epsilon = 1e-3},
       0.05,
       {0.418024629F, 0.623614609F, 0.398269057F}},
      {"torch Adagrad",
       {.rule = Rule::kAdagrad, .epsilon = 1e-3, .initial_accumulator = 0.1},
       0.05,
       {0.443504542F, 0.500540197F, 0.477202326F}},
      {"torch SparseAdam",
       {.rule = Rule::kAdam, .formula = ms, .epsilon = 1e-3},
       0,
       {0.429724753F, 0.618224978F, 0.49301368F}},
      {"MindSpore Adam",
       {.rule = Rule::kAdam, .formula = ms, .epsilon = 1e-3},
       0.05,
       {0.424146235F, 0.589609683F, 0.348295599F}},
      // Without l1, whose sign MindSpore's kernel on CPU does not take as its documentation does.
      {"MindSpore FTRL",
       {.rule = Rule::kFtrl, .l2 = 0.2, .initial_accumulator = 0.1},
       0,
       {0.169330165F, 0.114011787F, 0.000282845402F}},
      {"MindSpore Adagrad",
       {.rule = Rule::kAdagrad, .epsilon = 0, .initial_accumulator = 0.1},
       0,
       {0.447318226F, 0.517750978F, 0.500316083F}},
  };
  const float gradients[3][3] = {
      {0.5F, -0.25F, 0.001F}, {-1, 0.125F, 0.002F}, {0.75F, 0.0625F, -0.004F}};
  for (const Case& one : cases) {
    const Spec spec{.name = "a", .values = 3, .optimizer = one.optimizer};
    std::vector<std::byte> row(spec.row_bytes());
    write_values(spec, std::vector<float>(3, 0.5F), row.data());
    begin_state(spec, row.data());
    for (std::uint64_t step = 1; step <= 3; ++step) {
      Update(spec, {0.1, one.decay, step}).apply(row.data(), gradients[step - 1]);
    }
    std::vector<float> got(3);
    read_values(spec, row.data(), got);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i], one.want[i], 2e-6) << one.name;
  }
}

TEST(RowAdagrad, HasOneAccumulatorForTheRow) {
  const auto got = trained({.rule = Rule::kRowAdagrad, .epsilon = 1e-6}, 0);
  double s = 0;
  std::vector<double> w(kValues, 0.5);
  for (int step = 1; step <= kSteps; ++step) {
    double squares = 0;
    for (std::size_t i = 0; i < kValues; ++i) squares += std::pow(gradient(step, i), 2);
    s += squares / kValues;
    for (std::size_t i = 0; i < kValues; ++i) {
      w[i] -= 0.1 * gradient(step, i) / (std::sqrt(s) + 1e-6);
    }
  }
  for (std::size_t i = 0; i < kValues; ++i) EXPECT_NEAR(got[i], w[i], 2e-6);
}

TEST(Bfloat16, IsRoundedToNearestTiesToEven) {
  const Spec spec{.name = "a", .values = 1, .type = Type::kBfloat16};
  const auto rounded = [&](std::uint32_t bits) {
    std::byte row[4] = {};
    const float value = std::bit_cast<float>(bits);
    write_values(spec, {&value, 1}, row);
    float back = 0;
    read_values(spec, row, {&back, 1});
    return std::bit_cast<std::uint32_t>(back);
  };
  EXPECT_EQ(rounded(0x3f808000), 0x3f800000U);  // A tie, to the even one below,
  EXPECT_EQ(rounded(0x3f818000), 0x3f820000U);  // and above.
  EXPECT_EQ(rounded(0x3f808001), 0x3f810000U);
  EXPECT_EQ(rounded(0x7f800000), 0x7f800000U);  // Infinite.
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(rounded(0x7f800001))));
  EXPECT_EQ(rounded(0x80000000), 0x80000000U);  // -0
}

TEST(Bfloat16, IsComputedInFloat32) {
  const auto wide = trained({.rule = Rule::kSgd}, 0);
  const auto narrow = trained({.rule = Rule::kSgd}, 0, Type::kBfloat16);
  for (std::size_t i = 0; i < kValues; ++i) EXPECT_NEAR(narrow[i], wide[i], 0.02);
}

}  // namespace
}  // namespace holdfast::table
