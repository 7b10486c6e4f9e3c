// Which reports of ranks can all be true together.
#include "core/controller/belief.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::controller {
namespace {

constexpr Version kFar = 1'000'000'000;

std::vector<Rank> impossible(const std::vector<Said>& all) {
  return believe(all).impossible;
}

TEST(Belief, WhatACommitLeavesIsBelieved) {
  EXPECT_TRUE(impossible({{0, 7, 7}, {1, 6, 7}, {2, 6, 7}}).empty());
  EXPECT_TRUE(impossible({{0, 6, 7}, {1, 6, 6}, {2, 6, 7}}).empty());
  EXPECT_TRUE(impossible({{0, 6, 7}, {1, 6, 7}}).empty());
  EXPECT_TRUE(impossible({{0, kNoVersion}, {1, kNoVersion}}).empty());
}

// With HOLDFAST_PROTECT=0 some ranks may have made the update of a step that no other has staged.
TEST(Belief, OneStepMoreIsBelievedThoughNobodyHasStagedIt) {
  EXPECT_TRUE(impossible({{0, 8, 8}, {1, 7, 7}}).empty());
  EXPECT_TRUE(impossible({{0, 7, 7}, {1, 8, 8}, {2, 7, 7}}).empty());
}

TEST(Belief, WhoHasLostItsStateContradictsNobody) {
  EXPECT_TRUE(impossible({{0, 7, 7}, {1, kNoVersion, kNoVersion}}).empty());
}

TEST(Belief, OneThatIsFarAheadIsImpossible) {
  EXPECT_EQ(impossible({{0, 7, 7}, {1, kFar, kFar}, {2, 6, 7}}), std::vector<Rank>{1});
  EXPECT_EQ(impossible({{0, 7, 7}, {1, 9, 9}, {2, 7, 7}}), std::vector<Rank>{1});
  EXPECT_EQ(impossible({{0, kFar, kFar}, {1, 7, 7}, {2, 2 * kFar, 2 * kFar}, {3, 7, 8}}),
            (std::vector<Rank>{0, 2}));
}

TEST(Belief, OfTwoTheEarlierWordsDecide) {
  EXPECT_EQ(impossible({{0, 7, 7, 7}, {1, kFar, kFar, 7}}), std::vector<Rank>{1});
  EXPECT_TRUE(impossible({{0, kFar, kFar, kFar}, {1, 3, 3, 0}}).empty())
      << "who is behind gets a copy";
}

TEST(Belief, WhoIsBehindWithAPartOfItsOwnIsImpossible) {
  EXPECT_EQ(impossible({{0, 7, 7}, {1, 3, 3, 0, true}, {2, 7, 7}}), std::vector<Rank>{1});
}

TEST(Belief, NobodyLosesWhatItHasToldOf) {
  EXPECT_TRUE(is_sound({.version = 6, .staged = 7, .told = 7}));
  EXPECT_FALSE(is_sound({.version = 6, .staged = 6, .told = 7}));
  EXPECT_TRUE(is_sound({.version = kNoVersion, .staged = kNoVersion, .told = 7})) << "all of it";
}

TEST(Belief, AStepIsTheNextOne) {
  EXPECT_FALSE(is_sound({.version = 6, .staged = 8}));
  EXPECT_FALSE(is_sound({.version = 6, .staged = 5}));
}

}  // namespace
}  // namespace holdfast::controller
