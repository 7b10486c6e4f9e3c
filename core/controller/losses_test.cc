// Losses without a death: of a group's connections, and of pages of memory.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using wire::Reason;
using wire::Stage;

TEST_F(ControllerTest, AGroupThatIsLostWithoutADeathFormsAnew) {
  all_train();
  const Generation before = machine_->generation();
  step(Received{2, wire::GroupLost{before - 1}});
  EXPECT_EQ(machine_->generation(), before);  // The loss of an old group changes nothing.
  step(Received{2, wire::GroupLost{before}});
  EXPECT_EQ(machine_->generation(), before + 1);
  EXPECT_EQ(machine_->head().cause, (wire::Reason{.kind = Reason::Kind::kGroupLost, .rank = 1}));
  step(Received{3, wire::GroupLost{before}});  // The others say the same.
  EXPECT_EQ(machine_->generation(), before + 1);
  for (Link link = 1; link <= 3; ++link) report(link);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(ControllerTest, AGroupThatIsLostAgainAndAgainEndsTheJob) {
  all_train();
  for (std::int64_t times = 0; times < kMaxGroupsLost; ++times) {
    step(Received{2, wire::GroupLost{machine_->generation()}});
    ASSERT_FALSE(end_.has_value());
    for (Link link = 1; link <= 3; ++link) report(link);
  }
  step(Received{2, wire::GroupLost{machine_->generation()}});
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kGroupLostTooOften);
}

TEST_F(ControllerTest, ARankThatHasLostPagesGetsThemFromAnother) {
  all_train();
  step(Received{2, wire::GroupLost{machine_->generation(), 3}});
  EXPECT_EQ(machine_->head().cause.kind, Reason::Kind::kPagesLost);
  EXPECT_EQ(machine_->head().cause.rank, 1);
  EXPECT_EQ(machine_->head().cause.count, 3);
  for (const Link link : {Link{1}, Link{3}}) report(link);
  step(Received{2, wire::Report{machine_->generation(), 4, 4, false, {}, true}});
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().orders[0].act, wire::Act::kKeep);
  EXPECT_EQ(machine_->head().orders[1].act, wire::Act::kReceive);
  EXPECT_NE(machine_->head().orders[1].source.holder, 1);
  const Rank source = machine_->head().orders[1].source.holder;
  step(Received{2, wire::Repaired{machine_->generation(), 4096, true}});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  ASSERT_EQ(rebuilt_.size(), 1U);
  EXPECT_EQ(rebuilt_[0].rank, 1);
  EXPECT_EQ(rebuilt_[0].act, wire::Act::kReceive);
  EXPECT_EQ(rebuilt_[0].source, source);
  EXPECT_EQ(rebuilt_[0].bytes, 4096U);
  EXPECT_TRUE(rebuilt_[0].is_of_pages);
  EXPECT_EQ(machine_->head().version, 4U);
}

// The plan rests on what the rank has reported, so another one is made.
TEST_F(ControllerTest, ARankThatFindsOutLateThatItHasLostPagesIsNoSource) {
  all_train();
  step(Received{1, wire::GroupLost{machine_->generation(), 1}});
  step(Received{1, wire::Report{machine_->generation(), 4, 4, false, {}, true}});
  for (const Link link : {Link{2}, Link{3}}) report(link);
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  const Rank source = machine_->head().orders[0].source.holder;
  const Generation before = machine_->generation();
  const auto late = static_cast<Link>(source + 1);
  report(late);  // The same once more changes nothing.
  EXPECT_EQ(machine_->generation(), before);
  step(Received{late, wire::Report{before, 4, 4, false, {}, true}});
  EXPECT_EQ(machine_->generation(), before + 1);
  EXPECT_EQ(machine_->remarks().back().what.rank, source) << "users hear of it";
  for (Link link = 1; link <= 3; ++link) {
    const bool lost = link == 1 || link == late;
    step(Received{link, wire::Report{machine_->generation(), 4, 4, false, {}, lost}});
  }
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_NE(machine_->head().orders[0].source.holder, source);
}

TEST_F(ControllerTest, PagesThatAllRanksHaveLostEndTheJob) {
  all_train();
  step(Received{2, wire::GroupLost{machine_->generation(), 1}});
  for (Link link = 1; link <= 3; ++link) {
    step(Received{link, wire::Report{machine_->generation(), 4, 4, false, {}, true}});
  }
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
}

TEST_F(ControllerTest, ALostPageOfAPrivatePartWithoutACopyEndsTheJob) {
  all_train();
  step(Received{2, wire::GroupLost{machine_->generation(), 1}});
  for (Link link = 1; link <= 3; ++link) {
    step(Received{link, wire::Report{machine_->generation(), 4, 4, true, {}, false, link == 2}});
  }
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
  EXPECT_EQ(end_->reason.rank, 1);
}

// All of the rank comes anew: a single order does for both of its parts.
TEST_F(ControllerTest, ALostPageOfAPrivatePartComesFromItsHolder) {
  all_train();
  step(Received{2, wire::GroupLost{machine_->generation(), 1}});
  for (Link link = 1; link <= 3; ++link) {
    std::vector<wire::HeldCopy> held;
    if (link == 3) held.push_back({1, 4, 4});
    step(Received{link, wire::Report{machine_->generation(), 4, 4, true, held, false, link == 2}});
  }
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  const wire::Order& order = machine_->head().orders[1];
  EXPECT_EQ(order.act, wire::Act::kReceive);
  EXPECT_NE(order.source.holder, kNoRank);
  EXPECT_EQ(order.private_source.holder, 2);
}

TEST_F(ControllerTest, PagesThatAreLostAgainAndAgainEndTheJob) {
  all_train();
  for (std::int64_t times = 0; times <= kMaxGroupsLost; ++times) {
    step(Received{2, wire::GroupLost{machine_->generation(), 1}});
    for (Link link = 1; link <= 3; ++link) report(link);
  }
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kPagesLostTooOften);
  EXPECT_EQ(end_->reason.host, "host");
}

// Users hear what a rank remarks, by their agents, each once: also by an agent that connects later,
// or again. The size is limited, and the rank is the scheduler's word.
TEST_F(ControllerTest, PassesOnWhatARankRemarks) {
  all_train();
  const Reason what{.kind = Reason::Kind::kReplicas,
                    .rank = 7,
                    .detail = std::string(wire::kMaxSentenceBytes + 5, 'x')};
  const auto heard = [&](Link link = 90) {
    std::vector<Reason> all;
    for (const auto& message : said_[link]) {
      const auto* waiting = std::get_if<wire::Waiting>(&message);
      if (waiting != nullptr) all.push_back(waiting->reason);
    }
    return all;
  };
  for (int times = 0; times < 50; ++times) step(Received{2, wire::Remark{what}});
  give("agent's", 9, 1);
  EXPECT_EQ(heard().size(), 50U);
  for (int times = 0; times < 200; ++times) step(Received{2, wire::Remark{what}});
  ASSERT_EQ(heard().size(), 200U);
  EXPECT_EQ(heard().back().kind, Reason::Kind::kTooManyRemarks);
  EXPECT_EQ(heard()[0].rank, 1);
  EXPECT_EQ(heard()[0].detail.size(), wire::kMaxSentenceBytes);
  step(Connected{50, wire::PeerKind::kWorker});
  step(Received{50, wire::Remark{what}});  // It has no rank.
  EXPECT_EQ(heard().size(), 200U);
  EXPECT_EQ(last<wire::Waiting>(90)->remark, 200U);
  step(Closed{90});
  wire::AgentState again{"job", "agent", "host", {{"agent's", 9, 1, true}}};
  again.remarks = 198;  // Two were lost on their way.
  step(Received{91, again});
  EXPECT_EQ(heard(91).size(), 2U);
}

// What the journal has is all that a scheduler needs that is started again.
TEST_F(ControllerTest, ASchedulerThatIsStartedAgainKnowsTheRemarks) {
  all_train();
  give("agent's", 9, 1);
  const Reason what{.kind = Reason::Kind::kReplicas, .detail = "why"};
  for (int times = 1; times <= 3; ++times) {
    step(Received{2, wire::Remark{what}, 1000 * times});
  }
  ASSERT_EQ(remarks_.size(), 3U);
  EXPECT_EQ(remarks_[2].unix_ms, 3000);
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{{}, {}, remarks_});
  EXPECT_EQ(machine_->remarks(), remarks_);
  wire::AgentState agent{"job", "agent", "host", {{"agent's", 9, 1, true}}};
  agent.remarks = 3;
  step(Received{90, agent});
  EXPECT_EQ(last<wire::Waiting>(90), nullptr) << "it has had them";
  agent.agent_id = "another";
  agent.places.clear();
  agent.remarks = 0;
  step(Received{91, agent});
  EXPECT_EQ(said_[91].size(), 3U);
  come(2, who("w2", 20));
  step(Received{2, wire::Remark{what}, 4000});
  ASSERT_EQ(remarks_.size(), 4U) << "numbers go on";
  ASSERT_NE(last<wire::Waiting>(90), nullptr);
  EXPECT_EQ(last<wire::Waiting>(90)->remark, 4U);
}

// A journal is not believed more than a rank is.
TEST_F(ControllerTest, OfTooManyRemarksInAJournalTheFirstCount) {
  machine_.emplace(options_, std::nullopt);
  step(Started{{}, {}, std::vector<wire::Remarked>(wire::kMaxRemarks + 1)});
  EXPECT_EQ(machine_->remarks().size(), wire::kMaxRemarks);
}

// What is told of a place is of the process that has it now.
TEST_F(ControllerTest, ASuccessorHasNoStepBeforeItsFirst) {
  all_train();
  EXPECT_FALSE(machine_->is_recovering());
  now_ += std::chrono::seconds(5);
  const auto make_step = [&](Version version, std::initializer_list<Link> links) {
    for (const Link link : links) {
      step(Received{link, wire::Progress{machine_->generation(), version}});
    }
  };
  make_step(5, {1, 2, 3});
  EXPECT_EQ(machine_->find("w2")->stepped, now_);
  step(ProvenDead{"w2", 20});
  come(4, who("w2", 21));
  EXPECT_EQ(machine_->find("w2")->stepped, Instant{});
  EXPECT_FALSE(machine_->find("w2")->joined);
  for (const Link link : {1U, 4U, 3U}) {
    step(Received{link, wire::Report{machine_->generation(), 5, 5}});
  }
  ASSERT_EQ(machine_->stage(), wire::Stage::kRunning);
  EXPECT_TRUE(machine_->is_recovering());
  make_step(6, {1, 4});
  EXPECT_TRUE(machine_->is_recovering());
  make_step(6, {3});
  EXPECT_FALSE(machine_->is_recovering());
}

TEST_F(ControllerTest, AStepBetweenTwoLostGroupsBeginsTheCountAnew) {
  all_train();
  for (std::int64_t times = 0; times < 2 * kMaxGroupsLost; ++times) {
    step(Received{2, wire::GroupLost{machine_->generation()}});
    for (Link link = 1; link <= 3; ++link) report(link);
    for (Link link = 1; link <= 3; ++link) {
      step(Received{link, wire::Progress{machine_->generation(), 4}});
    }
  }
  EXPECT_FALSE(end_.has_value());
}

}  // namespace
}  // namespace holdfast::controller
