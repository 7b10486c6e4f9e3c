// Which journal a scheduler goes on with (P30).
#include "core/controller/takeover.h"

#include <gtest/gtest.h>

namespace holdfast::controller {
namespace {

constexpr std::uint64_t kRun = 7;
constexpr Candidate kSecondAttempt{.attempt = 2, .run = kRun, .world_size = 2};

wire::Formation of_run(std::uint64_t run, std::size_t ranks = 2) {
  wire::Formation formation;
  formation.run_id = run;
  formation.roster.resize(ranks);
  return formation;
}

TEST(Takeover, AFirstAttemptBeginsWhateverItFinds) {
  const Candidate first{.attempt = 1, .run = kRun, .world_size = 2};
  EXPECT_FALSE(may_succeed(first));
  EXPECT_EQ(choose_takeover(first, of_run(kRun)), Takeover::kBegin);
}

TEST(Takeover, ByHandItGoesOnWhereTheUserSaysSo) {
  Candidate by_hand{.world_size = 2};
  EXPECT_EQ(choose_takeover(by_hand, of_run(kRun)), Takeover::kBegin);
  by_hand.by_hand_again = true;
  EXPECT_EQ(choose_takeover(by_hand, of_run(kRun)), Takeover::kGoOn);
}

// The option is for schedulers that are started by hand, not for the first one of a new agent.
TEST(Takeover, AnAgentsFirstAttemptIsNotTheSameRunWhateverTheUserSays) {
  const Candidate candidate{.attempt = 1, .by_hand_again = true, .run = kRun, .world_size = 2};
  EXPECT_EQ(choose_takeover(candidate, of_run(kRun)), Takeover::kBegin);
}

TEST(Takeover, ALaterAttemptGoesOnWithItsOwnRunAlone) {
  EXPECT_EQ(choose_takeover(kSecondAttempt, of_run(kRun)), Takeover::kGoOn);
  EXPECT_EQ(choose_takeover(kSecondAttempt, of_run(kRun + 1)), Takeover::kBegin);
  EXPECT_EQ(choose_takeover(kSecondAttempt, std::nullopt), Takeover::kBegin);
}

// With etcd, another scheduler may have ended the job just before this one had its turn.
TEST(Takeover, TheRunOfOthersIsNotBegunAnew) {
  Candidate candidate = kSecondAttempt;
  candidate.of_others = true;
  EXPECT_EQ(choose_takeover(candidate, of_run(kRun)), Takeover::kGoOn);
  EXPECT_EQ(choose_takeover(candidate, of_run(kRun + 1)), Takeover::kEnded);
  EXPECT_EQ(choose_takeover(candidate, std::nullopt), Takeover::kEnded);
}

TEST(Takeover, AWorldOfAnotherSizeIsRefusedOnceRanksWereGiven) {
  EXPECT_EQ(choose_takeover(kSecondAttempt, of_run(kRun, 3)), Takeover::kOtherSize);
  EXPECT_EQ(choose_takeover(kSecondAttempt, of_run(kRun, 0)), Takeover::kGoOn);
}

// Rule P46.
TEST(Takeover, ASuccessorTriesForAsLongAsItsWorkersWait) {
  constexpr Duration kLimit = std::chrono::seconds(600);
  Candidate again_by_hand{.by_hand_again = true};
  for (const auto& candidate : {kSecondAttempt, again_by_hand}) {
    EXPECT_EQ(patience_of(candidate, kLimit).port, kLimit);
    EXPECT_EQ(patience_of(candidate, kLimit).tls, kLimit);
  }
}

TEST(Takeover, AFirstOneEndsAtOnceUnlessNobodyElseTellsItsWorkers) {
  constexpr Duration kLimit = std::chrono::seconds(600);
  const auto of_agent = patience_of({.attempt = 1, .by_hand_again = true}, kLimit);
  EXPECT_EQ(of_agent.port + of_agent.tls, Duration{});
  const auto by_hand = patience_of({}, kLimit);
  EXPECT_EQ(by_hand.port, Duration{});
  EXPECT_GT(by_hand.tls, Duration{});
  EXPECT_LT(by_hand.tls, kLimit);
}

}  // namespace
}  // namespace holdfast::controller
