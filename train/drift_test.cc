#include "train/drift.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::train {
namespace {

constexpr Reading kReading = {.read = 400'000, .exchange = 100'000, .step = 5'000'000};

TEST(Pace, TakesAThousandthOfTheStepsAtMost) {
  EXPECT_EQ(steps_between(std::vector(2, kReading)), 100U);
  EXPECT_EQ(steps_between(std::vector{Reading{.read = 1, .step = 1'000'000'000}}), 1U);
  // The slowest reading, the shortest step, and the shortest exchange count.
  const std::vector<Reading> unlike = {
      {.read = 400'000, .exchange = 9'000'000, .step = 6'000'000},
      {.read = 300'000, .exchange = 100'000, .step = 5'000'000},
  };
  EXPECT_EQ(steps_between(unlike), 100U);
}

TEST(Pace, IsShortUntilAStepWasTimedOnEveryRank) {
  EXPECT_EQ(steps_between(std::vector{kReading, Reading{.read = 400'000}}), 16U);
}

TEST(Pace, ComesToEveryGenerationEveryEndAndAfterSoManySteps) {
  Pace pace;
  EXPECT_TRUE(pace.is_due(1, 0, false));
  pace.compared(1, 0, std::vector(2, kReading));
  EXPECT_FALSE(pace.is_due(1, 0, false));
  EXPECT_FALSE(pace.is_due(1, 0, true));  // Only once for each version.
  EXPECT_FALSE(pace.is_due(1, 99, false));
  EXPECT_TRUE(pace.is_due(1, 99, true));
  EXPECT_TRUE(pace.is_due(1, 100, false));
  EXPECT_TRUE(pace.is_due(2, 0, true));
}

using Digests = std::vector<std::uint64_t>;

TEST(Differences, NameTheFirstTensorTheOddRankAndTheStep) {
  Differences two({"net.0.weight", "net.0.bias", "optimizer.net.0.bias.exp_avg"});
  EXPECT_EQ(two.name_new(Digests{1, 2, 3, 1, 2, 3}, 40), "");
  EXPECT_EQ(two.name_new(Digests{1, 2, 3, 1, 9, 3}, 41),
            "rank 1 holds other values of `net.0.bias` than rank 0 after step 41");
}

TEST(Differences, BelieveMostOfTheRanks) {
  EXPECT_EQ(Differences({"w"}).name_new(Digests{9, 1, 1}, 5),
            "rank 0 holds other values of `w` than rank 1 after step 5");
  EXPECT_EQ(Differences({"w"}).name_new(Digests{1, 1, 9, 9}, 5),
            "rank 2 holds other values of `w` than rank 0 after step 5");
  EXPECT_EQ(Differences({"w"}).name_new(Digests{1, 2, 3}, 5),
            "rank 1 holds other values of `w` than rank 0 after step 5");
}

TEST(Differences, NameEveryTensorOnce) {
  Differences all({"a", "b", "c"});
  EXPECT_EQ(all.name_new(Digests{1, 2, 3, 1, 9, 3}, 5),
            "rank 1 holds other values of `b` than rank 0 after step 5");
  EXPECT_EQ(all.name_new(Digests{1, 2, 3, 1, 9, 3}, 6), "");
  EXPECT_EQ(all.name_new(Digests{1, 2, 3, 9, 9, 9}, 7),
            "rank 1 holds other values of `a` than rank 0 after step 7 (1 other tensor "
            "differs, too)");
  EXPECT_EQ(all.name_new(Digests{1, 2, 3, 9, 9, 9}, 8), "");
}

}  // namespace
}  // namespace holdfast::train
