#include "table/initial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace holdfast::table {
namespace {

Spec of(Initial initial, std::uint64_t seed = 1, const char* name = "a") {
  return {.name = name, .values = 8, .initial = initial, .seed = seed};
}

std::vector<float> row(const Spec& spec, std::uint64_t key) {
  std::vector<float> values(spec.values);
  Beginning(spec).fill(key, values);
  return values;
}

TEST(Beginning, IsAFunctionOfSeedTableAndKey) {
  const Spec spec = of({Initial::Kind::kNormal, 0, 1});
  EXPECT_EQ(row(spec, 5), row(spec, 5));
  EXPECT_NE(row(spec, 5), row(spec, 6));
  EXPECT_NE(row(spec, 5), row(of(spec.initial, 2), 5));
  EXPECT_NE(row(spec, 5), row(of(spec.initial, 1, "b"), 5));
}

// These bits are a promise: a row must be the same on every machine, and in later releases.
TEST(Beginning, HasBitsThatNeverChange) {
  const std::vector<float> normal = row(of({Initial::Kind::kNormal, 0, 1}), 42);
  const std::vector<float> uniform = row(of({Initial::Kind::kUniform, -1, 1}), 42);
  EXPECT_EQ(normal[0], 0x1.0ad708p+0F);
  EXPECT_EQ(normal[7], -0x1.467e0cp+0F);
  EXPECT_EQ(uniform[0], 0x1.67ce8ap-1F);
  EXPECT_EQ(row(of({Initial::Kind::kConstant, 0.25, 0}), 42), std::vector<float>(8, 0.25F));
}

TEST(Beginning, HasTheMeanAndTheDeviationAskedFor) {
  for (const Initial::Kind kind : {Initial::Kind::kNormal, Initial::Kind::kUniform}) {
    const Spec spec = of({kind, 2, 3});
    double sum = 0;
    double squares = 0;
    constexpr int kRows = 20'000;
    for (std::uint64_t key = 0; key < kRows; ++key) {
      for (const float value : row(spec, key)) {
        sum += value;
        squares += double{value} * value;
        EXPECT_TRUE(kind == Initial::Kind::kNormal || (value >= 2 && value <= 3));
      }
    }
    const double mean = sum / (8 * kRows);
    const double deviation = std::sqrt(squares / (8 * kRows) - mean * mean);
    const bool is_normal = kind == Initial::Kind::kNormal;
    EXPECT_NEAR(mean, is_normal ? 2 : 2.5, 0.03);
    EXPECT_NEAR(deviation, is_normal ? 3 : std::sqrt(1.0 / 12), 0.03);
  }
}

TEST(NormalQuantile, IsThatOfTables) {
  EXPECT_EQ(normal_quantile(0.5), 0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-8);
  EXPECT_NEAR(normal_quantile(0.001), -3.090232306167813, 1e-8);
  EXPECT_NEAR(normal_quantile(1e-12), -7.034483825301132, 1e-7);
  EXPECT_EQ(normal_quantile(0.01), -normal_quantile(0.99));
}

}  // namespace
}  // namespace holdfast::table
