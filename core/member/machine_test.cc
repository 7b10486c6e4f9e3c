// What a member does that the simulation can not bring about, and what it must never do.
#include "core/member/machine.h"

#include <gtest/gtest.h>

namespace holdfast::member {
namespace {

class MemberTest : public ::testing::Test {
 protected:
  Actions hear(wire::Message message) { return machine_.step(Received{std::move(message)}); }

  // Accepted, parked at `version` and stopped for `generation`.
  void park(Generation generation, Version version) {
    (void)machine_.step(Connected{});
    (void)hear(wire::Accepted{0, 1, 7});
    (void)hear(wire::Stop{generation, "why"});
    (void)machine_.step(Parked{{version, version}});
  }

  template <class Action>
  static const Action* find(const Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* found = std::get_if<Action>(&action)) return found;
    }
    return nullptr;
  }
  template <class Message>
  static const Message* said(const Actions& actions) {
    for (const auto& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      if (send && std::holds_alternative<Message>(send->message)) {
        return &std::get<Message>(send->message);
      }
    }
    return nullptr;
  }

  Machine machine_{wire::Register{.job = "job", .node_id = "w0", .incarnation = 1}};
};

TEST_F(MemberTest, ReportsOnceItIsParkedAndStopped) {
  (void)machine_.step(Connected{});
  (void)hear(wire::Accepted{0, 1, 7});
  EXPECT_EQ(said<wire::Report>(hear(wire::Stop{1, ""})), nullptr);
  const auto actions = machine_.step(Parked{{5, 6}});
  const auto* report = said<wire::Report>(actions);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(*report, (wire::Report{1, 5, 6}));
}

TEST_F(MemberTest, SaysNothingWithoutAConnection) {
  park(1, 5);
  (void)machine_.step(Disconnected{});
  EXPECT_EQ(find<Send>(hear(wire::Stop{2, ""})), nullptr);
}

TEST_F(MemberTest, HearsWhoWillNeverJoin) {
  park(1, 5);
  const auto actions = hear(wire::Resume{1, 5, 2});
  const auto* go = find<Go>(actions);
  ASSERT_NE(go, nullptr);
  EXPECT_EQ(go->ended, 2);
}

TEST_F(MemberTest, IgnoresAResumeOfAGenerationThatWasGivenUp) {
  park(1, 5);
  (void)hear(wire::Stop{2, ""});
  EXPECT_EQ(find<Go>(hear(wire::Resume{1, 5})), nullptr);
  EXPECT_NE(find<Go>(hear(wire::Resume{2, 5})), nullptr);
}

TEST_F(MemberTest, IgnoresARepairOfAGenerationThatWasGivenUp) {
  park(1, 5);
  (void)hear(wire::Stop{2, ""});
  EXPECT_EQ(find<Mend>(hear(wire::Repair{1, 6, wire::RepairKind::kFinish, kNoRank})), nullptr);
}

TEST_F(MemberTest, MendsOnceAndAnswersEveryTime) {
  park(1, 5);
  const wire::Repair repair{1, 6, wire::RepairKind::kFinish, kNoRank};
  EXPECT_NE(find<Mend>(hear(repair)), nullptr);
  EXPECT_NE(said<wire::Repaired>(machine_.step(RepairDone{{6, 6}})), nullptr);
  const auto again = hear(repair);
  EXPECT_EQ(find<Mend>(again), nullptr);
  EXPECT_NE(said<wire::Repaired>(again), nullptr);
}

TEST_F(MemberTest, ReportsWhatItHoldsWhenItWasStoppedWhileMending) {
  park(1, kNoVersion);
  (void)hear(wire::Repair{1, 5, wire::RepairKind::kReceive, 1});
  EXPECT_EQ(said<wire::Report>(hear(wire::Stop{2, ""})), nullptr);
  const auto actions = machine_.step(RepairDone{{5, 5}});
  EXPECT_EQ(said<wire::Repaired>(actions), nullptr);
  ASSERT_NE(said<wire::Report>(actions), nullptr);
  EXPECT_EQ(*said<wire::Report>(actions), (wire::Report{2, 5, 5}));
}

TEST_F(MemberTest, WouldRatherFailThanTrainFromAnotherVersion) {
  park(1, 5);
  const auto actions = hear(wire::Resume{1, 6});
  EXPECT_EQ(find<Go>(actions), nullptr);
  EXPECT_NE(said<wire::Failed>(actions), nullptr);
}

TEST_F(MemberTest, AStopInTrainingEndsTheCollectivesOfThatGeneration) {
  park(1, 5);
  (void)hear(wire::Resume{1, 5});
  const auto actions = hear(wire::Stop{2, ""});
  ASSERT_NE(find<Abort>(actions), nullptr);
  EXPECT_EQ(find<Abort>(actions)->generation, 1U);
}

TEST_F(MemberTest, AStopOfTheGenerationItTrainsInIsOld) {
  park(1, 5);
  (void)hear(wire::Resume{1, 5});
  EXPECT_TRUE(hear(wire::Stop{1, ""}).empty());
}

TEST_F(MemberTest, SaysItsEndAgainAfterAReconnection) {
  park(1, 5);
  (void)hear(wire::Resume{1, 5});
  (void)machine_.step(TrainingEnded{9});
  (void)machine_.step(Disconnected{});
  (void)machine_.step(Connected{});
  const auto actions = hear(wire::Accepted{0, 1, 7});
  ASSERT_NE(said<wire::Finished>(actions), nullptr);
  EXPECT_EQ(said<wire::Finished>(actions)->version, 9U);
  EXPECT_NE(find<Released>(hear(wire::Farewell{})), nullptr);
}

TEST_F(MemberTest, AFarewellIsNothingToWhoStillTrains) {
  park(1, 5);
  EXPECT_TRUE(hear(wire::Farewell{}).empty());
}

TEST_F(MemberTest, WaitsAsLongAsItIsNew) {
  (void)machine_.step(Connected{});
  const auto actions = hear(wire::Waiting{"1 of 2 workers are here"});
  EXPECT_NE(find<Say>(actions), nullptr);
  EXPECT_EQ(find<GiveUp>(actions), nullptr);
}

TEST_F(MemberTest, EndsWhenItsPlaceWasGivenAway) {
  park(1, 5);
  (void)machine_.step(Disconnected{});
  (void)machine_.step(Connected{});
  const auto actions = hear(wire::Waiting{"rank 0 is leased to another"});
  ASSERT_NE(find<GiveUp>(actions), nullptr);
  EXPECT_FALSE(find<GiveUp>(actions)->success);
}

TEST_F(MemberTest, GivesUpOnceOnly) {
  park(1, 5);
  EXPECT_NE(find<GiveUp>(hear(wire::JobEnded{true, "done"})), nullptr);
  EXPECT_TRUE(hear(wire::JobEnded{true, "done"}).empty());
}

}  // namespace
}  // namespace holdfast::member
