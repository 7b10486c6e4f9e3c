// Which ranks of a host stand still, and what the agent tells of them.
#include "core/agent/stall_watch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

class StallTest : public AgentTest {
 protected:
  void SetUp() override {
    start();
    step(LinkUp{});
    where_["w0"] =
        where_["w1"] = {.generation = 1, .operations = 1, .version = 0, .doing = Doing::kComputing};
  }
  void look_at_all(int looks = 1, bool on_time = true) {
    for (int i = 0; i < looks; ++i) {
      Looked seen{.stopped = {}, .on_time = on_time};
      for (const auto& [node, where] : where_) seen.whereabouts[at(node)] = where;
      step(seen);
    }
  }
  // Both make steps, each of which takes so many looks.
  void train(int steps, int looks = 1) {
    for (int i = 0; i < steps; ++i) {
      for (auto& [node, where] : where_) ++where.version, ++where.steps, where.operations += 2;
      look_at_all(looks);
    }
  }
  [[nodiscard]] std::vector<wire::StandingState> told() const {
    return std::get<wire::AgentState>(said_.back()).standing;
  }
  std::map<std::string, Whereabouts> where_;
};

TEST_F(StallTest, ItIsToldWhetherARankIsInAnExchangeOfSome) {
  train(5);
  where_["w0"].waits_for_team = true;
  look_at_all(kStallLooks);
  where_["w0"].waits_for_team = false;  // It waits for a while at a time.
  ++where_["w1"].team_operations;
  look_at_all();
  ASSERT_EQ(told().size(), 1U) << "w1 has made an exchange: it goes on";
  EXPECT_EQ(told()[0].node_id, "w0");
  EXPECT_TRUE(told()[0].exchanges);
  look_at_all(kStallLooks);
  ASSERT_EQ(told().size(), 2U);
  EXPECT_FALSE(told()[1].exchanges);
}

TEST_F(StallTest, ARankThatStandsForAFewStepsIsTold) {
  train(5);
  ++where_["w1"].operations;  // It waits for w0.
  look_at_all(kStallLooks);
  const auto before = said_.size();
  EXPECT_EQ(told().size(), 1U);
  look_at_all();
  ASSERT_EQ(told().size(), 2U);
  EXPECT_EQ(told()[0].node_id, "w0");
  EXPECT_EQ(told()[0].operations + 1, told()[1].operations);
  EXPECT_EQ(told()[0].doing, Doing::kComputing);
  EXPECT_GE(told()[0].for_ms, 1000U);
  look_at_all(50);
  EXPECT_EQ(said_.size(), before + 1) << "it is told once";
  train(1);
  EXPECT_TRUE(told().empty());
}

TEST_F(StallTest, ARankOfLongStepsStandsLater) {
  look_at_all(9);
  train(3, 10);
  look_at_all(kStallSteps * 10 - 10);
  EXPECT_EQ(said_.size(), 1U);
  look_at_all();
  EXPECT_EQ(told().size(), 2U);
}

TEST_F(StallTest, TheFirstStepMayTakeLong) {
  look_at_all(kFirstStallLooks);
  EXPECT_EQ(said_.size(), 1U);
  look_at_all();
  EXPECT_EQ(told().size(), 2U);
}

TEST_F(StallTest, LooksThatWereMissedDoNotCount) {
  train(5);
  look_at_all(100, false);
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(StallTest, APausedJobStandsByOrderAndIsWatchedAnewAfterwards) {
  train(5);
  look_at_all(kStallLooks + 1);
  EXPECT_EQ(told().size(), 2U);
  step(Received{wire::Pause{.on = true}});
  EXPECT_TRUE(told().empty());
  look_at_all(100);
  EXPECT_TRUE(told().empty());
  step(Received{wire::Pause{}});
  look_at_all(kStallLooks - 1);
  EXPECT_TRUE(told().empty());
  look_at_all();
  EXPECT_EQ(told().size(), 2U) << "the time of the pause belongs to no step";
}

TEST_F(StallTest, WhoRecoversOrHasEndedDoesNotStand) {
  train(5);
  where_["w0"].doing = Doing::kRecovering;
  where_["w1"].doing = Doing::kEnded;
  look_at_all(100);
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(StallTest, WhatAProcessDoesIsFoundOutWhenTheSchedulerAsks) {
  train(5);
  look_at_all(kStallLooks + 1);
  bool asked = false;
  const auto actions = machine_->step(Received{wire::Inspect{"w0", places_.at("w0").incarnation}});
  for (const auto& action : actions) {
    const auto* inspect = std::get_if<Inspect>(&action);
    asked = asked || (inspect != nullptr && inspect->process == at("w0"));
  }
  EXPECT_TRUE(asked);
  EXPECT_TRUE(machine_->step(Received{wire::Inspect{"w0", 1}}).empty()) << "another process";
  step(Inspected{at("w0"), "it spins"});
  EXPECT_EQ(told()[0].report, "it spins");
  EXPECT_EQ(told()[1].report, "");
  train(1);
  step(Inspected{at("w0"), "it spins"});
  EXPECT_TRUE(told().empty()) << "the answer came too late";
}

TEST_F(StallTest, AProcessThatWasWaitedForTooLongIsEnded) {
  const wire::Evict evict{"w0", places_.at("w0").incarnation, true};
  train(5);
  step(Received{evict});
  EXPECT_TRUE(killed_.empty()) << "it has gone on since";
  look_at_all(kStallLooks + 1);
  EXPECT_TRUE(told()[0].has_stepped);
  step(Received{evict});
  ASSERT_EQ(killed_.size(), 1U);
  EXPECT_EQ(killed_[0].process, at("w0"));
  dies(at("w0"), 137);
  EXPECT_EQ(std::get<wire::AgentState>(said_.back()).places[0].ending.kind, Ending::Kind::kWasHung);
}

}  // namespace
}  // namespace holdfast::agent
