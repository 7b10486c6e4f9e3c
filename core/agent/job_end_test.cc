// How an agent learns that the job has ended, and how it ends itself.
#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

TEST_F(AgentTest, AJobThatFailedEndsAllWithItsReason) {
  start();
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kProgram, .rank = 0}}});
  dies(at("w0"), 1);
  dies(at("w1"), 1);
  dies(at(kSchedulerNode), 1);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_NE(exit_->code, 0);
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kProgram);
}

TEST_F(AgentTest, WhoHangsAfterAGoodEndIsEndedAndTheCodeIsZero) {
  start();
  step(LinkUp{});
  step(Received{wire::JobEnded{true, {}}});
  dies(at("w0"), 0);
  dies(at(kSchedulerNode), 0);
  EXPECT_GT(graces_, 0);
  step(GraceOver{});
  ASSERT_FALSE(killed_.empty());
  dies(at("w1"), 137);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 0);
}

TEST_F(AgentTest, ThatRunsTheSchedulerStaysThoughItIsDrained) {
  start(0, 1, true, 4);
  step(LinkUp{});
  step(Received{wire::Places{{}, true}});
  dies(at("w0"), 137);
  dies(at("w1"), 137);
  EXPECT_FALSE(exit_);
  step(Received{wire::JobEnded{true, {}}});
  dies(at(kSchedulerNode), 0);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 0);
}

TEST_F(AgentTest, ThatRunsTheSchedulerStaysWithoutPlacesAlsoWhileThatIsReplaced) {
  start(0, 3, true, 2);
  step(LinkUp{});
  step(Received{wire::Places{{}, true}});
  dies(at("w0"), 137);
  dies(at("w1"), 137);
  dies(at(kSchedulerNode), 137);
  dies(at(kSchedulerNode), 137);  // The next one comes after a pause.
  EXPECT_FALSE(exit_);
}

TEST_F(AgentTest, EndsWellOnceItIsDrained) {
  start(1, 1, false, 4);
  step(LinkUp{});
  step(Received{wire::Places{{}, true}});
  EXPECT_EQ(std::get<wire::AgentState>(said_.back()).takes, 0U);
  dies(at("w0"), 137);
  dies(at("w1"), 137);
  EXPECT_FALSE(exit_);
  dies(spares_[0].process, 137);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 0);
  EXPECT_TRUE(exit_->drained);
}

// The link to its scheduler may hang while its processes are told at once.
TEST_F(AgentTest, StartsNobodyOnceAProcessHasHeardOfAGoodEnd) {
  start(0, 3, false, 4);
  step(LinkUp{});
  step(Died{.process = at("w0"), .ending = ending(1), .detected_ns = 1, .job_ended = true});
  EXPECT_EQ(spawned_, 2);
  dies(at("w1"), 1);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 0);
}

TEST_F(AgentTest, WaitsForTheReasonOfABadEndOfWhichAProcessHasHeard) {
  start(1, 3, false, 4);
  step(LinkUp{});
  step(Died{.process = at("w0"), .ending = ending(1), .detected_ns = 1, .job_ended = false});
  EXPECT_EQ(graces_, 1);
  dies(spares_[0].process, 1);
  step(Received{wire::Places{{"w0", "w2"}}});
  EXPECT_EQ(spawned_, 3);
  EXPECT_TRUE(promoted_.empty());
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kNoPlan}}});
  dies(at("w1"), 143);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kNoPlan);
}

TEST_F(AgentTest, EndsBadlyIfNobodySaysWhyTheJobHasFailed) {
  start(0, 3, false, 4);
  const Died told{.process = at("w0"),
                  .ending = ending(7),
                  .detected_ns = 1,
                  .error = "lost",
                  .job_ended = false};
  step(told);
  step(GraceOver{});
  dies(at("w1"), 143);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 7);
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kProcessEnded);
  EXPECT_EQ(exit_->reason.detail, "lost");
  EXPECT_EQ(exit_->failed_node, "w0");
}

TEST_F(AgentTest, EndsBadlyThoughWhoHasHeardOfABadEndHasEndedWell) {
  start(0, 3, false, 4);
  step(Died{.process = at("w0"), .ending = ending(0), .detected_ns = 1, .job_ended = false});
  dies(at("w1"), 0);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 1);
}

TEST_F(AgentTest, SaysHowWhoHasHeardOfABadEndHasEnded) {
  start(0, 3, false, 4);
  step(Died{.process = at("w0"), .ending = {}, .detected_ns = 1, .job_ended = false});
  step(Died{.process = at("w0"), .ending = ending(7), .detected_ns = 1, .job_ended = false});
  dies(at("w1"), 0);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 7);
}

TEST_F(AgentTest, HeedsTheEndThatAProcessOfAFormerPlaceHasHeard) {
  start(0, 3, false, 4);
  step(LinkUp{});
  step(Received{wire::Places{}});
  const int before = spawned_;
  step(Died{.process = at("w0"), .ending = ending(1), .detected_ns = 1, .job_ended = true});
  for (const auto& spare : spares_) dies(spare.process, 137);
  EXPECT_EQ(spawned_, before);
  dies(at("w1"), 137);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 0);
}

}  // namespace
}  // namespace holdfast::agent
