#include "core/replicas/comparison.h"

#include <gtest/gtest.h>

#include <vector>

namespace holdfast::replicas {
namespace {

using Act = Verdict::Act;
using Heard = Comparison::Heard;
using Digests = std::vector<std::uint64_t>;

constexpr Reading kReading = {
    .names = 7, .digest = 1, .read = 400'000, .exchange = 100'000, .step = 5'000'000};

Reading with_digest(std::uint64_t digest) {
  Reading reading = kReading;
  reading.digest = digest;
  return reading;
}

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
  Comparison c({});
  EXPECT_TRUE(c.is_due(1, {0, 0}, false));
  EXPECT_EQ(c.heard(1, {0, 0}, std::vector(2, kReading)), Heard::kAlike);
  EXPECT_FALSE(c.is_due(1, {0, 0}, false));
  EXPECT_FALSE(c.is_due(1, {0, 0}, true));  // Only once for each version.
  EXPECT_FALSE(c.is_due(1, {99, 99}, false));
  EXPECT_TRUE(c.is_due(1, {99, 99}, true));
  EXPECT_TRUE(c.is_due(1, {100, 100}, false));
  EXPECT_TRUE(c.is_due(2, {0, 0}, true));
}

TEST(Pace, IsTheUsersIfTheyGiveOne) {
  Comparison c({.every = 3});
  EXPECT_EQ(c.heard(1, {5, 5}, std::vector(2, kReading)), Heard::kAlike);
  EXPECT_FALSE(c.is_due(1, {7, 7}, false));
  EXPECT_TRUE(c.is_due(1, {8, 8}, false));
}

TEST(Comparison, NeedsReplicasOfAllRanksAndLooksForThemSoon) {
  Comparison c({});
  const std::vector<Reading> none = {with_digest(1), Reading{.digest = 2}};
  EXPECT_EQ(c.heard(1, {0, 0}, none), Heard::kAlike);
  EXPECT_TRUE(c.is_due(1, {1, 1}, false));
  EXPECT_EQ(c.heard(1, {1, 1}, none), Heard::kAlike);
  EXPECT_TRUE(c.is_due(1, {2, 2}, false));
  EXPECT_EQ(c.heard(1, {2, 2}, none), Heard::kAlike);
  EXPECT_FALSE(c.is_due(1, {17, 17}, false));
  EXPECT_TRUE(c.is_due(1, {18, 18}, false));
}

TEST(Comparison, NamesARankThatHoldsReplicasOfOtherNames) {
  Comparison c({});
  std::vector<Reading> readings(3, kReading);
  readings[2].names = 8;
  EXPECT_EQ(c.heard(1, {4, 4}, readings), Heard::kOtherNames);
  EXPECT_EQ(c.unlike_names(),
            "rank 2 keeps other parameters, or other state of its optimizer, than rank 0");
}

Reading told_by(const Comparison& c) {
  Reading reading = kReading;
  c.tell(reading);
  return reading;
}

// What a comparison of one version comes to.
Verdict judged(Comparison& c, const std::vector<std::string>& names, const Digests& digests,
               Version version) {
  std::vector<Reading> readings(digests.size() / names.size(), told_by(c));
  readings[0].digest = 2;
  EXPECT_EQ(c.heard(1, {version, version}, readings), Heard::kUnlike);
  return c.judge(names, digests);
}

TEST(Verdict, GivesARankTheValuesOfMost) {
  Comparison c({});
  const Verdict verdict = judged(c, {"a", "b"}, {1, 2, 1, 9, 1, 2}, 41);
  EXPECT_EQ(verdict.act, Act::kRepair);
  EXPECT_EQ(verdict.words, "rank 1 holds other values of `b` than rank 0 after step 41");
  ASSERT_EQ(verdict.copies.size(), 1U);
  EXPECT_EQ(verdict.copies[0].tensor, 1U);
  EXPECT_EQ(verdict.copies[0].from, 0U);
}

TEST(Verdict, SaysWhichStepsMayHaveUsedTheValues) {
  Comparison c({});
  EXPECT_EQ(c.heard(1, {20, 20}, std::vector(3, kReading)), Heard::kAlike);
  const std::string since_21 =
      "Steps 21 to 24, and their sums on all ranks, may have been computed with wrong values";
  EXPECT_EQ(judged(c, {"w"}, {1, 1, 9}, 24).doubt, since_21);
  // The repair was cut short, so the same version is compared once more.
  EXPECT_EQ(judged(c, {"w"}, {1, 1, 9}, 24).doubt, since_21);
  c.repaired();
  EXPECT_EQ(judged(c, {"w"}, {1, 2, 9}, 27).doubt,
            "No values are those of most ranks. Steps 25 to 27, and their sums on all ranks, may "
            "have been computed with wrong values");
}

// The result of state.once() is a version, but no step: a difference can not have come back yet.
TEST(Verdict, WaitsForAStepToSeeWhetherADifferenceComesBack) {
  Comparison c({});
  std::vector<Reading> readings(3, kReading);
  readings[2].digest = 9;
  EXPECT_EQ(c.heard(1, {7, 5}, readings), Heard::kUnlike);
  EXPECT_EQ(c.judge(std::vector<std::string>{"w"}, Digests{1, 1, 9}).act, Act::kRepair);
  EXPECT_FALSE(c.is_due(1, {8, 5}, false));
  EXPECT_EQ(c.heard(1, {8, 5}, std::vector(3, kReading)), Heard::kAlike);
  EXPECT_TRUE(c.is_due(1, {9, 6}, false));
  EXPECT_EQ(c.heard(1, {9, 6}, readings), Heard::kUnlike);
  EXPECT_EQ(c.judge(std::vector<std::string>{"w"}, Digests{1, 1, 9}).act, Act::kEnd);
}

TEST(Verdict, DoesNotCountACopyOfAnotherRanksState) {
  for (const bool is_copy : {false, true}) {
    Comparison c({});
    std::vector<Reading> readings(3, kReading);
    readings[0].is_copy = is_copy ? 1 : 0;
    readings[2].digest = 9;
    EXPECT_EQ(c.heard(2, {5, 5}, readings), Heard::kUnlike);
    const Verdict verdict = c.judge(std::vector<std::string>{"w"}, Digests{1, 1, 9});
    EXPECT_EQ(verdict.act, is_copy ? Act::kEnd : Act::kRepair);
  }
  Comparison c({});  // The copy itself may be what differs.
  std::vector<Reading> readings(3, kReading);
  readings[0].is_copy = readings[0].digest = 9;
  EXPECT_EQ(c.heard(2, {5, 5}, readings), Heard::kUnlike);
  EXPECT_EQ(c.judge(std::vector<std::string>{"w"}, Digests{9, 1, 1}).act, Act::kRepair);
}

TEST(Verdict, TakesEachReplicaFromARankOfItsMost) {
  Comparison c({});
  const Verdict verdict = judged(c, {"a", "b"}, {9, 2, 1, 2, 1, 8}, 5);
  EXPECT_EQ(verdict.act, Act::kRepair);
  EXPECT_EQ(verdict.words,
            "rank 0 holds other values of `a` than rank 1 after step 5 (1 other tensor differs, "
            "too)");
  ASSERT_EQ(verdict.copies.size(), 2U);
  EXPECT_EQ(verdict.copies[0].from, 1U);
  EXPECT_EQ(verdict.copies[1].from, 0U);
}

TEST(Comparison, TellsOnceOfEachRankWithOtherNamesIfItOnlyWarns) {
  for (const bool warns : {false, true}) {
    Comparison c({.warns_only = warns});
    std::vector<Reading> readings(3, kReading);
    readings[2].names = 77;
    EXPECT_EQ(c.heard(1, {5, 5}, readings), Heard::kOtherNames);
    EXPECT_EQ(c.heard(1, {9, 9}, readings), warns ? Heard::kAlike : Heard::kOtherNames);
    readings[1].names = 78;
    EXPECT_EQ(c.heard(1, {12, 12}, readings), Heard::kOtherNames) << "rank 1 was alike so far";
    EXPECT_EQ(c.unlike_names().starts_with(warns ? "rank 1 keeps" : "rank 1 (and 1 other rank)"),
              true)
        << c.unlike_names();
    EXPECT_EQ(c.heard(1, {15, 15}, readings), warns ? Heard::kAlike : Heard::kOtherNames);
  }
}

TEST(Verdict, EndsTheJobWhereNoValuesAreThoseOfMost) {
  for (const Digests& digests : {Digests{1, 9}, Digests{1, 1, 9, 9}, Digests{1, 2, 3}}) {
    Comparison c({});
    const Verdict verdict = judged(c, {"w"}, digests, 5);
    EXPECT_EQ(verdict.act, Act::kEnd);
    EXPECT_TRUE(verdict.copies.empty());
    EXPECT_NE(verdict.words.find("other values of `w` than rank 0 after step 5"),
              std::string::npos);
  }
  Comparison c({});  // One replica of two has no most.
  EXPECT_EQ(judged(c, {"a", "b"}, {1, 1, 1, 2, 9, 3}, 5).act, Act::kEnd);
}

TEST(Verdict, IsThatTheProgramDriftsIfTheDifferenceIsThereAgainAStepLater) {
  Comparison c({});
  EXPECT_EQ(judged(c, {"w"}, {1, 1, 9}, 5).act, Act::kRepair);
  EXPECT_EQ(told_by(c).relapse, 6U);
  EXPECT_TRUE(c.is_due(1, {6, 6}, false));
  const Verdict again = judged(c, {"w"}, {1, 1, 8}, 6);
  EXPECT_EQ(again.act, Act::kEnd);
  EXPECT_EQ(again.words,
            "rank 2 holds other values of `w` than rank 0 after step 6, a step after differences "
            "were repaired");
  EXPECT_EQ(again.doubt, "");
}

TEST(Verdict, AnotherRankThatDiffersAStepLaterIsRepairedToo) {
  Comparison c({});
  EXPECT_EQ(judged(c, {"w"}, {1, 1, 9}, 5).act, Act::kRepair);
  EXPECT_EQ(judged(c, {"w"}, {1, 1, 9}, 5).act, Act::kRepair);  // The repair was cut short.
  EXPECT_EQ(judged(c, {"w"}, {1, 8, 1}, 6).act, Act::kRepair);
  EXPECT_EQ(judged(c, {"w"}, {8, 1, 1}, 7).act, Act::kRepair);
  EXPECT_EQ(told_by(c).row, kMostInRow);
  const Verdict last = judged(c, {"w"}, {1, 1, 9}, 8);
  EXPECT_EQ(last.act, Act::kEnd) << "memory does not fail in each step";
  EXPECT_EQ(last.words,
            "rank 2 holds other values of `w` than rank 0 after step 8, and ranks differed in each "
            "of the 3 steps before");
}

TEST(Verdict, ARankThatDiffersAgainEndsTheJobWhateverElseDiffers) {
  Comparison c({});
  EXPECT_EQ(judged(c, {"v", "w"}, {1, 1, 1, 1, 1, 1, 9, 1, 1, 9}, 5).act, Act::kRepair);
  const Verdict again = judged(c, {"v", "w"}, {1, 1, 9, 1, 1, 1, 1, 1, 1, 9}, 6);
  EXPECT_EQ(again.act, Act::kEnd);
  EXPECT_TRUE(again.words.starts_with("rank 4 holds other values of `w` than rank 0"))
      << again.words;
}

// Two repairs of one version were cut short, and one rank did not come to judge the second.
TEST(Verdict, IsTheSameThoughOneRankHasSeenMoreThanAnother) {
  Comparison a({});
  Comparison b({});
  EXPECT_EQ(judged(a, {"w"}, {1, 1, 1, 1, 9}, 5).act, Act::kRepair);
  EXPECT_EQ(judged(b, {"w"}, {1, 1, 1, 1, 9}, 5).act, Act::kRepair);
  EXPECT_EQ(judged(a, {"w"}, {1, 9, 1, 1, 1}, 5).act, Act::kRepair);
  std::vector<Reading> readings(5, kReading);
  a.tell(readings[0]);
  b.tell(readings[1]);
  for (Comparison* c : {&a, &b}) EXPECT_EQ(c->heard(2, {5, 5}, readings), Heard::kAlike);
  readings[1].digest = 9;
  for (Comparison* c : {&a, &b}) {
    EXPECT_EQ(c->heard(2, {6, 6}, readings), Heard::kUnlike);
    EXPECT_EQ(c->judge(std::vector<std::string>{"w"}, Digests{1, 9, 1, 1, 1}).act, Act::kEnd);
  }
}

TEST(Verdict, RepairsOnceMoreIfAStepInBetweenWasAlike) {
  Comparison c({});
  EXPECT_EQ(judged(c, {"w"}, {1, 1, 9}, 5).act, Act::kRepair);
  EXPECT_EQ(c.heard(1, {6, 6}, std::vector(3, kReading)), Heard::kAlike);
  EXPECT_EQ(judged(c, {"w"}, {1, 1, 9}, 106).act, Act::kRepair);
}

// A process that has just replaced another knows of no repair; one that has repaired tells it.
TEST(Verdict, IsTheSameOnARankThatHasJustCome) {
  Comparison survivor({});
  Comparison successor({});
  EXPECT_EQ(judged(survivor, {"w"}, {1, 1, 9}, 5).act, Act::kRepair);
  std::vector<Reading> readings(3, kReading);  // The first comparison of the next generation.
  survivor.tell(readings[0]);
  for (Comparison* c : {&survivor, &successor}) {
    EXPECT_EQ(c->heard(2, {5, 5}, readings), Heard::kAlike);
    EXPECT_TRUE(c->is_due(2, {6, 6}, false));
    readings[0].digest = 2;
    EXPECT_EQ(c->heard(2, {6, 6}, readings), Heard::kUnlike);
    EXPECT_EQ(c->judge(std::vector<std::string>{"w"}, Digests{1, 1, 8}).act, Act::kEnd);
    readings[0].digest = 1;
  }
}

TEST(Verdict, NamesEachReplicaOnceIfItOnlyWarns) {
  Comparison c({.warns_only = true});
  const std::vector<std::string> all = {"a", "b", "c"};
  const Verdict first = judged(c, all, {1, 2, 3, 1, 9, 3}, 5);
  EXPECT_EQ(first.act, Act::kGoOn);
  EXPECT_EQ(first.words, "rank 1 holds other values of `b` than rank 0 after step 5");
  EXPECT_EQ(judged(c, all, {1, 2, 3, 1, 9, 3}, 6).words, "");
  EXPECT_EQ(judged(c, all, {1, 2, 3, 9, 9, 9}, 7).words,
            "rank 1 holds other values of `a` than rank 0 after step 7 (1 other tensor differs, "
            "too)");
  EXPECT_EQ(judged(c, all, {1, 2, 3, 1, 1, 9}, 8).act, Act::kGoOn);
}

}  // namespace
}  // namespace holdfast::replicas
