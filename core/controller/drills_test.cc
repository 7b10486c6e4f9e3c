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
