// The simulated world: its choices, and a minute of schedules.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/rounds_for_test.h"
#include "sim/checkers.h"
#include "sim/choices.h"
#include "sim/world.h"

namespace holdfast::sim {
namespace {

#ifdef HOLDFAST_SANITIZED
constexpr std::uint64_t kSchedules = 600;
constexpr std::uint64_t kOfHosts = 120;
constexpr std::uint64_t kElections = 50;
constexpr std::uint64_t kCounted = 500;
#else
constexpr std::uint64_t kSchedules = 20'000;
constexpr std::uint64_t kOfHosts = 10'000;
constexpr std::uint64_t kElections = 1'000;
constexpr std::uint64_t kCounted = ~std::uint64_t{0};
#endif

void keep_every_invariant(const std::string& world, std::uint64_t schedules) {
  std::uint64_t faults = 0;
  for (std::uint64_t seed = 1; seed <= schedules; ++seed) {
    Random choices(seed);
    const Outcome outcome = simulate(world, choices);
    faults += outcome.faults;
    ASSERT_EQ(outcome.violation, "")
        << "bin/sim --world " << world << " --only " << seed - 1
        << " --print --shrink; tape: " << to_text(world, choices.tape());
  }
  EXPECT_GT(faults, schedules / 2);
}

TEST(Simulation, SchedulesKeepEveryInvariant) {
  keep_every_invariant("swarm", kSchedules);
}

TEST(Simulation, SchedulesOfSeveralHostsKeepEveryInvariant) {
  keep_every_invariant("hosts", kOfHosts);
}

TEST(Simulation, RehearsalsCostNothing) {
  keep_every_invariant("rehearsed", kOfHosts / 4);
}

TEST(Simulation, RanksThatHangAreNamedAndReplaced) {
  keep_every_invariant("hung", kOfHosts / 4);
}

TEST(Simulation, LostPagesComeFromAnotherRank) {
  keep_every_invariant("lossy", kOfHosts / 2);
}

TEST(Simulation, SnapshotsAreWholeAndTheLastRung) {
  keep_every_invariant("snapshots", kOfHosts / 2);
}

TEST(Simulation, APausedJobMakesNoStepAndGoesOn) {
  keep_every_invariant("paused", kOfHosts / 2);
}

TEST(Simulation, ParameterServersAreRanksLikeOthers) {
  keep_every_invariant("served", kOfHosts / 2);
}

TEST(Simulation, AgentsEndInTimeAndAsTheJobDid) {
  keep_every_invariant("farewell", kOfHosts);
}

// The second of two hosts with 64 ranks each is lost in a step, and a spare host takes its places.
TEST(Simulation, AHostWithManyRanksMayBeLost) {
  for (const std::size_t chance : {2'500U, 3'500U}) {
    Tape tape(chance);
    tape.push_back(1);
    Replay choices(tape);
    const Outcome outcome = simulate("wide", choices);
    EXPECT_EQ(outcome.violation, "") << to_text("wide", tape);
    EXPECT_TRUE(outcome.success) << to_text("wide", tape);
    EXPECT_EQ(outcome.faults, 1U);
  }
}

// Makes all runs of `world`, at most `most` of them, and returns how many it made. None may violate
// an invariant.
std::uint64_t count_through(const std::string& world, std::uint64_t most) {
  Exhaustive choices;
  std::uint64_t runs = 0;
  do {
    const Outcome outcome = simulate(world, choices);
    ++runs;
    EXPECT_EQ(outcome.violation, "") << to_text(world, choices.tape());
    EXPECT_TRUE(outcome.success) << to_text(world, choices.tape());
  } while (!::testing::Test::HasFailure() && runs < most && choices.next());
  return runs;
}

// The world "small" has five times as many runs: `sim --exhaustive` makes them every night.
TEST(Simulation, EverySmallestScheduleWithTwoFaultsEndsWell) {
  EXPECT_GE(count_through("smallest", kCounted), std::min<std::uint64_t>(kCounted, 10'000));
}

TEST(Simulation, EveryExchangeWithOneFaultEndsWell) {
  EXPECT_GE(count_through("exchange", kCounted), 500U);
}

TEST(Election, SchedulesKeepEveryRule) {
  keep_every_invariant("election", kElections);
}

TEST(Election, EveryScheduleOfTwoWithOneFaultKeepsEveryRule) {
  EXPECT_GE(count_through("candidates", kCounted), 500U);
}

TEST(Simulation, TheSameTapeGivesTheSameRun) {
  for (std::uint64_t seed = 1; seed <= rounds(200); ++seed) {
    Random choices(seed);
    const Outcome first = simulate("swarm", choices);
    Replay again(choices.tape());
    const Outcome second = simulate("swarm", again);
    ASSERT_EQ(first.hash, second.hash) << seed;
    ASSERT_EQ(again.tape(), choices.tape()) << seed;
  }
}

TEST(Simulation, DifferentSeedsGiveDifferentRuns) {
  Random one(1);
  Random two(2);
  EXPECT_NE(simulate("swarm", one).hash, simulate("swarm", two).hash);
}

TEST(Choices, CountingGoesThroughEveryTapeOnce) {
  Exhaustive choices;
  std::vector<Tape> tapes;
  do {
    if (choices.pick(3) == 1) (void)choices.pick(2);
    tapes.push_back(choices.tape());
  } while (choices.next());
  EXPECT_EQ(tapes, (std::vector<Tape>{{0}, {1, 0}, {1, 1}, {2}}));
}

TEST(Choices, ATapeSurvivesAsText) {
  const Tape tape{0, 3, 0, 0, 7};
  const auto back = from_text(to_text("swarm", tape));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->world, "swarm");
  EXPECT_EQ(back->tape, tape);
}

TEST(Choices, ATextThatIsNoTapeIsRefused) {
  EXPECT_FALSE(from_text("").has_value());
  EXPECT_FALSE(from_text("swarm 1-2").has_value());
  EXPECT_FALSE(from_text("swarm 99999999999:1").has_value());
}

TEST(Choices, ShrinkingKeepsOnlyWhatTheFailureNeeds) {
  const auto fails = [](const Tape& tape) {  // There is a number >= 5 after a number >= 2.
    bool two = false;
    for (const auto answer : tape) {
      if (two && answer >= 5) return true;
      two = two || answer >= 2;
    }
    return false;
  };
  EXPECT_EQ(shrink({0, 9, 1, 3, 0, 0, 8, 8, 1, 4}, fails), (Tape{2, 5}));
}

// A checker that never finds anything is of no use: each must report the violation that it is for.
class CheckersTest : public ::testing::Test {
 protected:
  Checkers checkers_{2, 2};
  std::vector<Arena> arenas_{Arena{0, 0, false, kInitialContent},
                             Arena{0, 0, false, kInitialContent}};
  void expect(const std::string& name) {
    EXPECT_EQ(checkers_.violation().substr(0, 2), name) << checkers_.violation();
  }
};

TEST_F(CheckersTest, SeeTwoVersionsInOneGeneration) {
  wire::Formation formation;
  formation.generation = 1;
  formation.stage = wire::Stage::kRunning;
  formation.roster = {{.node_id = "w0", .incarnation = 1}, {.node_id = "w1", .incarnation = 1}};
  wire::Assignment part{.rank = 0, .world_size = 2, .generation = 1};
  part.stage = wire::Stage::kRunning;
  checkers_.said(part, 0, 1, formation);
  part.version = formation.version = 1;
  checkers_.said(part, 1, 1, formation);
  expect("S1");
}

TEST_F(CheckersTest, SeeAWordThatIsNotDurable) {
  checkers_.said(wire::Assignment{.rank = 0, .generation = 1}, 0, 1, std::nullopt);
  expect("P1");
}

TEST_F(CheckersTest, SeeRanksThatGoOnFromDifferentBytes) {
  checkers_.went(0, 1, 0, arenas_);
  arenas_[1].content ^= 1;
  checkers_.went(1, 1, 0, arenas_);
  expect("S2");
}

TEST_F(CheckersTest, SeeALaterVersionThatIsLeftBehind) {
  arenas_[1].updating = true;
  arenas_[1].staged = 1;
  checkers_.went(0, 1, 0, arenas_);
  expect("S3");
}

TEST_F(CheckersTest, SeeAStepMadeFromWrongGradients) {
  arenas_[0].version = 1;
  checkers_.committed(arenas_[0]);
  expect("S4");
}

TEST_F(CheckersTest, SeeAStepOfAPausedJob) {
  wire::Formation formation{.generation = 1, .stage = wire::Stage::kRunning, .pauses = 1};
  formation.roster = {{.node_id = "w0", .incarnation = 1}};
  wire::Assignment part{.rank = 0, .generation = 1, .stage = wire::Stage::kRunning, .pauses = 1};
  checkers_.said(part, 0, 1, formation);
  checkers_.stands_still(1);
  checkers_.committed(Arena{.version = 1});
  EXPECT_EQ(checkers_.violation().substr(0, 3), "P64");
}

TEST_F(CheckersTest, SeeARankThatHasNotMadeEveryStep) {
  checkers_.ended_well(arenas_);
  expect("S5");
}

TEST_F(CheckersTest, SeeAWriterThatLostItsArena) {
  arenas_[0].owner = 2;
  checkers_.wrote(arenas_[0], 1);
  expect("S6");
}

TEST_F(CheckersTest, SeeRanksThatLookForEachOtherAtDifferentPlaces) {
  checkers_.met(1, {{0, "a:1", 0}, {1, "b:1", 1}});
  checkers_.met(2, {{0, "a:1", 0}, {1, "c:1", 1}});
  EXPECT_EQ(checkers_.violation(), "");
  checkers_.met(2, {{0, "a:1", 0}, {1, "b:1", 1}});
  EXPECT_EQ(checkers_.violation().substr(0, 3), "P54");
}

TEST_F(CheckersTest, SeeASourceThatIsNotWhole) {
  checkers_.copies(Arena{}, 0);
  expect("S7");
}

TEST_F(CheckersTest, SeeTwoAnswersOfOneExchange) {
  checkers_.gave(0, 1);
  checkers_.gave(0, 2);
  checkers_.got(0, 1);
  checkers_.got(0, 1);
  EXPECT_EQ(checkers_.violation(), "");
  checkers_.got(0, 2);
  expect("P3");
}

}  // namespace
}  // namespace holdfast::sim
