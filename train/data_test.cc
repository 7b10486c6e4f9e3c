#include "train/data.h"

#include <gtest/gtest.h>

#include <set>

namespace holdfast::train {
namespace {

TEST(Permutation, GivesEveryNumberOnceWhateverTheSize) {
  for (std::uint64_t size = 1; size < 300; ++size) {
    const Permutation order(size, size);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < size; ++i) seen.insert(order(i));
    EXPECT_EQ(seen.size(), size);
    EXPECT_EQ(*seen.rbegin(), size - 1);
  }
}

TEST(Permutation, ScattersNeighboursAndDependsOnTheSeed) {
  constexpr std::uint64_t kSize = 60'000;
  const Permutation one(1, kSize);
  const Permutation other(2, kSize);
  std::uint64_t fixed = 0;
  std::uint64_t near = 0;
  for (std::uint64_t i = 0; i + 1 < kSize; ++i) {
    if (one(i) == other(i)) ++fixed;
    if (one(i + 1) == one(i) + 1) ++near;
  }
  // The expected value of each is about 1 in a random permutation.
  EXPECT_LT(fixed, 12U);
  EXPECT_LT(near, 12U);
}

TEST(Sharding, UsesNoSampleTwiceInAnEpochAndLeavesOutLessThanAStep) {
  const Sharding sharding{.samples = 1003, .batch = 8, .ranks = 3, .seed = 7};
  EXPECT_EQ(sharding.steps_per_epoch(), 41U);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::size_t> seen;
    for (std::uint64_t step = 0; step < sharding.steps_per_epoch(); ++step) {
      for (std::uint64_t rank = 0; rank < sharding.ranks; ++rank) {
        for (const auto i : sharding.indices(epoch, step, rank)) {
          EXPECT_LT(i, sharding.samples);
          EXPECT_TRUE(seen.insert(i).second);
        }
      }
    }
    EXPECT_EQ(seen.size(), 41U * 24U);
  }
}

TEST(Sharding, ShufflesEveryEpochAnewAndAlwaysAlike) {
  const Sharding sharding{.samples = 1000, .batch = 10, .ranks = 2, .seed = 7};
  EXPECT_EQ(sharding.indices(3, 4, 1), sharding.indices(3, 4, 1));
  EXPECT_NE(sharding.indices(3, 4, 1), sharding.indices(4, 4, 1));
  EXPECT_NE(sharding.indices(3, 4, 1), sharding.indices(3, 4, 0));
}

TEST(Sharding, DigestsOfAnEpochsStepsAddUpToThatOfItsSamples) {
  const Sharding sharding{.samples = 60, .batch = 5, .ranks = 3, .seed = 7};
  std::uint64_t sum = 0;
  std::vector<std::size_t> all;
  for (std::uint64_t step = 0; step < sharding.steps_per_epoch(); ++step) {
    for (std::uint64_t rank = 0; rank < 3; ++rank) {
      sum += digest_of(sharding.indices(1, step, rank));
    }
  }
  for (std::size_t i = 0; i < 60; ++i) all.push_back(i);
  EXPECT_EQ(sum, digest_of(all));
  all[3] = 4;
  EXPECT_NE(sum, digest_of(all));
}

// The samples of a step, over all ranks, do not depend on the number of ranks.
TEST(Sharding, GivesAStepTheSameSamplesInAnyWorld) {
  const Sharding alone{.samples = 1000, .batch = 24, .ranks = 1, .seed = 7};
  const Sharding three{.samples = 1000, .batch = 8, .ranks = 3, .seed = 7};
  std::vector<std::size_t> together;
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    for (const auto i : three.indices(2, 5, rank)) together.push_back(i);
  }
  EXPECT_EQ(together, alone.indices(2, 5, 0));
}

}  // namespace
}  // namespace holdfast::train
