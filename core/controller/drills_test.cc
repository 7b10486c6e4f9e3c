// Drills: what an observer wants to happen to a rank reaches it, if the job takes that.
#include <gtest/gtest.h>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using wire::Reason;

class DrillsTest : public ControllerTest {
 protected:
  static constexpr Link kObserver = 70;

  void take_drills() {
    options_.takes_drills = true;
    machine_.emplace(options_, std::nullopt);
    step(Started{});
  }
  // What the observer is told.
  Reason ask(const wire::Drill& drill) {
    if (!machine_->peers().contains(kObserver)) {
      step(Connected{kObserver, wire::PeerKind::kObserver});
    }
    step(Received{kObserver, drill});
    const auto* drilled = last<wire::Drilled>(kObserver);
    return drilled == nullptr ? Reason{} : drilled->reason;
  }
  wire::Drill drill_{.rank = 1, .kind = wire::DrillKind::kSpin, .at_step = 9, .for_ms = 5};
};

TEST_F(DrillsTest, AJobThatWasNotStartedForThemTakesNone) {
  all_train();
  EXPECT_EQ(ask(drill_).kind, Reason::Kind::kNoDrills);
  EXPECT_EQ(last<wire::Drill>(2), nullptr);
}

TEST_F(DrillsTest, ReachTheRankAndAllUsersHearOfIt) {
  take_drills();
  all_train();
  const Reason told = ask(drill_);
  EXPECT_EQ(told.kind, Reason::Kind::kDrill);
  EXPECT_EQ(told.rank, 1);
  EXPECT_EQ(told.version, 9U);
  ASSERT_NE(last<wire::Drill>(2), nullptr);
  EXPECT_EQ(*last<wire::Drill>(2), drill_);
  EXPECT_EQ(last<wire::Drill>(1), nullptr);
  ASSERT_EQ(machine_->remarks().size(), 1U);
  EXPECT_EQ(machine_->remarks()[0].what, told);
}

TEST_F(DrillsTest, AreForRanksThatTrain) {
  take_drills();
  EXPECT_EQ(ask(drill_).kind, Reason::Kind::kNotTraining);
  all_train();
  for (const Rank rank : {-1, 3}) {
    drill_.rank = rank;
    EXPECT_EQ(ask(drill_).kind, Reason::Kind::kNoSuchRank) << rank;
  }
  drill_.rank = 1;
  step(Received{2, wire::Progress{machine_->generation(), 9}});
  EXPECT_EQ(ask(drill_).kind, Reason::Kind::kStepIsMade);
  drill_.at_step = 0;
  EXPECT_EQ(ask(drill_).kind, Reason::Kind::kDrill);
  step(Closed{2});
  EXPECT_EQ(ask(drill_).kind, Reason::Kind::kNotTraining);
}

TEST_F(DrillsTest, NoneIsOrderedThatNobodyWouldBeToldOf) {
  take_drills();
  all_train();
  drill_.at_step = 0;
  for (std::size_t times = 0; times < wire::kMaxRemarks / 2; ++times) {
    ASSERT_EQ(ask(drill_).kind, Reason::Kind::kDrill) << times;
  }
  EXPECT_EQ(ask(drill_).kind, Reason::Kind::kTooManyRemarks);
}

TEST_F(DrillsTest, AreKnownByTheirTime) {
  take_drills();
  all_train();
  step(Connected{kObserver, wire::PeerKind::kObserver});
  step(Received{kObserver, drill_, 1234});
  ASSERT_EQ(machine_->remarks().size(), 1U);
  EXPECT_EQ(machine_->remarks()[0].unix_ms, 1234);
}

// A fault is a drill's if it came to the drill's process, and in the way in which it would.
TEST(DrillBehind, IsTheNewestThatFits) {
  using Kind = wire::Ending::Kind;
  const auto drill = [](Rank rank, std::int64_t pid, wire::DrillKind kind) {
    return wire::Remarked{0,
                          {.kind = Reason::Kind::kDrill,
                           .rank = rank,
                           .pid = pid,
                           .count = static_cast<std::int64_t>(kind)}};
  };
  const auto lost = [](Rank rank, std::int64_t pid, wire::Ending ending) {
    return Reason{.kind = Reason::Kind::kRankLost, .rank = rank, .pid = pid, .ending = ending};
  };
  const std::vector<wire::Remarked> all = {drill(1, 10, wire::DrillKind::kKill),
                                           {0, {.kind = Reason::Kind::kSlow, .rank = 1, .pid = 10}},
                                           drill(1, 10, wire::DrillKind::kKill),
                                           drill(1, 11, wire::DrillKind::kHang),
                                           drill(2, 20, wire::DrillKind::kStop),
                                           drill(3, 30, wire::DrillKind::kPage),
                                           drill(4, 40, wire::DrillKind::kFlip)};
  EXPECT_EQ(drill_behind(lost(1, 10, {Kind::kSignalled, 9}), all), 3U);
  EXPECT_EQ(drill_behind(lost(1, 10, {}), all), 3U) << "nobody knows how it ended";
  EXPECT_EQ(drill_behind(lost(1, 10, {Kind::kSignalled, 11}), all), 0U);
  EXPECT_EQ(drill_behind(lost(1, 10, {Kind::kExited, 1}), all), 0U);
  EXPECT_EQ(drill_behind(lost(2, 10, {Kind::kSignalled, 9}), all), 0U) << "another rank";
  EXPECT_EQ(drill_behind(lost(1, 12, {Kind::kSignalled, 9}), all), 0U) << "another process";
  EXPECT_EQ(drill_behind(lost(1, 11, {Kind::kWasHung}), all), 4U);
  EXPECT_EQ(drill_behind(lost(1, 11, {Kind::kSignalled, 9}), all), 0U);
  EXPECT_EQ(drill_behind(lost(2, 20, {Kind::kWasStopped}), all), 5U);
  EXPECT_EQ(drill_behind({.kind = Reason::Kind::kPagesLost, .rank = 3, .pid = 30}, all), 6U);
  EXPECT_EQ(drill_behind(lost(3, 30, {Kind::kSignalled, 9}), all), 0U);
  EXPECT_EQ(drill_behind(lost(4, 40, {Kind::kSignalled, 9}), all), 0U);
  EXPECT_EQ(drill_behind(lost(1, 10, {Kind::kSignalled, 9}), {}), 0U);
}

TEST_F(DrillsTest, SlownessTakesTime) {
  take_drills();
  all_train();
  EXPECT_NE(ask({.rank = 1, .kind = wire::DrillKind::kSlow}).kind, Reason::Kind::kDrill);
}

TEST_F(DrillsTest, OnlyAnObserverAsksForOne) {
  take_drills();
  all_train();
  step(Received{1, drill_});
  EXPECT_EQ(last<wire::Drill>(2), nullptr);
}

}  // namespace
}  // namespace holdfast::controller
