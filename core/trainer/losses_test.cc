// Lost pages: the trainer machine gets them back, and loses no step that was committed.
#include <gtest/gtest.h>

#include "core/trainer/machine_for_test.h"

namespace holdfast::trainer {
namespace {

// Whoever has lost pages says so until it is stopped. It reports what was lost, gets that back, and
// makes the step again.
TEST_F(TrainerTest, GetsLostPagesBackAndMakesTheStepAgain) {
  stand();
  (void)bring(StepEnded{});
  (void)take<AwaitSums>();
  const auto told = bring(PagesLost{{4, 4, false, {}, true}, 3});
  ASSERT_NE(said<wire::GroupLost>(told), nullptr);
  EXPECT_EQ(*said<wire::GroupLost>(told), (wire::GroupLost{1, 3}));
  (void)bring(SumsDone{Outcome::kStopped, ""});
  EXPECT_EQ(machine_->state(), State::kUncertain);
  now_ = *machine_->deadline();
  EXPECT_EQ(*said<wire::GroupLost>(bring(TimePassed{})), (wire::GroupLost{1, 3}));
  const auto stopped = stop(true);
  ASSERT_NE(said<wire::Report>(stopped), nullptr);
  EXPECT_TRUE(said<wire::Report>(stopped)->has_lost_shared);
  EXPECT_FALSE(said<wire::Report>(stopped)->has_lost_private);
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)repair(2, 4, wire::Act::kReceive);
  EXPECT_EQ(take<Repair>().order.act, wire::Act::kReceive);
  (void)bring(Repaired{.holding = {4, 4}});
  EXPECT_EQ(said<wire::GroupLost>(go(2, 4)), nullptr);
  EXPECT_EQ(take<Return>().what, What::kVoid);
  begin();
}

TEST_F(TrainerTest, BeginsNoStepWithLostPages) {
  stand();
  (void)bring(PagesLost{{4, 4, false, {}, true}, 1});
  (void)bring(StepBegun{});
  EXPECT_EQ(machine_->state(), State::kUncertain);
  EXPECT_TRUE(work_.empty());
}

// A step that is committed stays so, but the program does not go on before what was lost is back.
TEST_F(TrainerTest, KeepsTheStepInWhoseUpdatePagesAreLost) {
  stand();
  arrive();
  (void)bring(Arrived{});
  (void)take<Update>();
  EXPECT_NE(said<wire::GroupLost>(bring(PagesLost{{5, 5, false, {}, true}, 1})), nullptr);
  (void)bring(Updated{});
  EXPECT_TRUE(work_.empty());
  const auto stopped = stop(true);
  ASSERT_NE(said<wire::Report>(stopped), nullptr);
  EXPECT_EQ(said<wire::Report>(stopped)->version, 5U);
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)repair(2, 5, wire::Act::kReceive);
  (void)take<Repair>();
  (void)bring(Repaired{.holding = {5, 5}});
  (void)go(2, 5);
  EXPECT_EQ(take<Return>().what, What::kCommittedByPlan);
}

// What it has reported is not true any more.
TEST_F(TrainerTest, ReportsAnewIfPagesAreLostAfterTheReport) {
  stand();
  arrive();
  EXPECT_FALSE(said<wire::Report>(stop(true))->has_lost_private);
  const auto told = bring(PagesLost{{4, 4, true, {}, false, true}, 1});
  ASSERT_NE(said<wire::Report>(told), nullptr);
  EXPECT_TRUE(said<wire::Report>(told)->has_lost_private);
  EXPECT_EQ(said<wire::GroupLost>(told), nullptr);
  (void)bring(Arrived{Outcome::kStopped});
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  // The plan came before that: the next generation has to get it back.
  (void)go(2, 4);
  EXPECT_EQ(take<Return>().what, What::kVoid);
  (void)bring(StepBegun{});
  (void)take<JoinGroup>();
  (void)bring(Formed{});
  EXPECT_EQ(take<Return>().what, What::kBegun);
  const auto told_again = bring(StepBegun{});
  EXPECT_EQ(machine_->state(), State::kUncertain);
  ASSERT_NE(said<wire::GroupLost>(told_again), nullptr);
  EXPECT_EQ(*said<wire::GroupLost>(told_again), (wire::GroupLost{2, 1}));
}

TEST_F(TrainerTest, TakesLostGradientsForAVoidStepOnly) {
  stand();
  (void)bring(PagesLost{{4, 4}, 1});
  (void)bring(StepBegun{});
  (void)stop(true);
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)go(2, 4);
  (void)take<JoinGroup>();
  (void)bring(Formed{});
  EXPECT_EQ(take<Return>().what, What::kBegunAnew);
  (void)bring(StepBegun{});
  EXPECT_EQ(take<Return>().what, What::kBegun);
}

// Lost pages of the committed version cost nothing if the next one takes its place; else they
// count.
TEST_F(TrainerTest, GoesOnWithoutTheVersionThatTheNextOneReplaces) {
  for (const bool is_void : {false, true}) {
    work_.clear();
    machine_.emplace(options_);
    stand();
    (void)bring(StepEnded{});
    (void)take<AwaitSums>();
    EXPECT_EQ(said<wire::GroupLost>(bring(PagesLost{{4, 4, true, {}, false, true}, 0})), nullptr);
    (void)bring(SumsDone{});
    (void)take<Stage>();
    (void)bring(Staged{});
    (void)take<Arrive>();
    if (is_void) {
      EXPECT_TRUE(said<wire::Report>(stop(true))->has_lost_private);
      continue;
    }
    (void)bring(Arrived{});
    (void)take<Update>();
    (void)bring(Updated{});
    EXPECT_EQ(take<Return>().what, What::kCommitted);
    EXPECT_FALSE(machine_->holding().has_lost_private);
  }
}

TEST_F(TrainerTest, ARankThatTrainsAloneCanNotGetPagesBack) {
  options_.solo = true;
  machine_.emplace(options_);
  (void)bring(JoinCalled{{4, 4}});
  (void)take<Return>();
  begin();
  (void)bring(PagesLost{{4, 4, false, {}, true}, 2});
  (void)bring(StepBegun{});
  const auto result = take<Return>();
  EXPECT_EQ(result.what, What::kFailed);
  EXPECT_EQ(result.reason.kind, Reason::Kind::kPagesLost);
}

}  // namespace
}  // namespace holdfast::trainer
