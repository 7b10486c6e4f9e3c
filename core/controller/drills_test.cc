// Drills: what an observer wants to happen to a rank reaches it, if the job takes that.
#include <gtest/gtest.h>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using wire::Reason;

class DrillsTest : public ControllerTest {
 protected:
  void take_drills() {
    options_.takes_drills = true;
    machine_.emplace(options_, std::nullopt);
    step(Started{});
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

TEST_F(DrillsTest, LinksAreCutOnlyBetweenHosts) {
  take_drills();
  all_train();
  const wire::Drill cut{.rank = 1, .kind = wire::DrillKind::kCut};
  EXPECT_EQ(ask(cut), (Reason{.kind = Reason::Kind::kNoLinks, .rank = 1}));
  EXPECT_EQ(last<wire::Drill>(2), nullptr);
  take_drills();
  said_.clear();
  come_from_two_hosts();
  report_all({1, 2, 3});
  EXPECT_EQ(ask(cut).kind, Reason::Kind::kDrill);
  EXPECT_NE(last<wire::Drill>(2), nullptr);
}

class LoneRankTest : public ControllerTest {
 protected:
  LoneRankTest() : ControllerTest(1) {
    options_.takes_drills = true;
    machine_.emplace(options_, std::nullopt);
    step(Started{});
  }
};

// The job would end well, with a wrong result.
TEST_F(LoneRankTest, KeepsItsBits) {
  come(1, who("w1", 10));
  report(1);
  EXPECT_EQ(ask({.rank = 0, .kind = wire::DrillKind::kFlip}),
            (Reason{.kind = Reason::Kind::kAlone, .rank = 0}));
  EXPECT_EQ(last<wire::Drill>(1), nullptr);
  EXPECT_EQ(ask({.rank = 0, .kind = wire::DrillKind::kKill}).kind, Reason::Kind::kDrill);
}

class HostDrillsTest : public HostsTest {
 protected:
  HostDrillsTest() {
    options_.takes_drills = true;
    options_.own_agent = "agent-1";
  }
  Reason ask_for(const std::string& host, wire::DrillKind kind = wire::DrillKind::kKill) {
    return ask({.kind = kind, .host = host});
  }
};

TEST_F(HostDrillsTest, ReachTheHostsAgentAlone) {
  const Reason told = ask_for("host-2");
  EXPECT_EQ(told, (Reason{.kind = Reason::Kind::kDrill, .count = 0, .total = 1, .host = "host-2"}));
  ASSERT_NE(last<wire::Drill>(91), nullptr);
  EXPECT_EQ(last<wire::Drill>(91)->kind, wire::DrillKind::kKill);
  for (const Link link : {1U, 2U, 3U, 90U}) EXPECT_EQ(last<wire::Drill>(link), nullptr) << link;
  ASSERT_EQ(machine_->remarks().size(), 1U);
  EXPECT_EQ(machine_->remarks()[0].what, told);
}

TEST_F(HostDrillsTest, TheSchedulersHostIsSpared) {
  EXPECT_EQ(ask_for("host-1").kind, Reason::Kind::kSchedulersHost);
  EXPECT_EQ(ask_for("agent-1").kind, Reason::Kind::kSchedulersHost);
  EXPECT_EQ(last<wire::Drill>(90), nullptr);
}

TEST_F(HostDrillsTest, TheOnlyHostIsSpared) {
  step(Closed{91});
  EXPECT_EQ(ask_for("host-1").kind, Reason::Kind::kOnlyHost);
}

TEST_F(HostDrillsTest, AHostThatIsNotThereIsAnsweredWithThoseThatAre) {
  const Reason told = ask_for("host-3");
  EXPECT_EQ(told.kind, Reason::Kind::kNoHost);
  EXPECT_EQ(told.detail, "host-1, host-2");
}

// One name of two agents means neither: which one is meant has to be said.
TEST_F(HostDrillsTest, AgentsOfOneNameAreToldApart) {
  tell(92, "agent-3", "host-2", {});
  const Reason told = ask_for("host-2");
  EXPECT_EQ(told.kind, Reason::Kind::kNoHost);
  EXPECT_EQ(told.detail, "agent-2, agent-3, host-1");
  EXPECT_EQ(ask_for("agent-3", wire::DrillKind::kStop).kind, Reason::Kind::kDrill);
  EXPECT_NE(last<wire::Drill>(92), nullptr);
  EXPECT_EQ(last<wire::Drill>(91), nullptr);
}

TEST_F(HostDrillsTest, HostsAreKilledOrStopped) {
  EXPECT_EQ(ask_for("host-2", wire::DrillKind::kFlip).kind, Reason::Kind::kNotForHosts);
  EXPECT_EQ(last<wire::Drill>(91), nullptr);
}

TEST_F(HostDrillsTest, AJobThatTakesNoneKeepsItsHosts) {
  options_.takes_drills = false;
  machine_.emplace(options_, std::nullopt);
  EXPECT_EQ(ask_for("host-2").kind, Reason::Kind::kNoDrills);
}

TEST_F(DrillsTest, OnlyAnObserverAsksForOne) {
  take_drills();
  all_train();
  step(Received{1, drill_});
  EXPECT_EQ(last<wire::Drill>(2), nullptr);
}

}  // namespace
}  // namespace holdfast::controller
