// What happens if nobody has the state any more.
#include <gtest/gtest.h>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

// All processes die with their memory, after all ranks had reached a version, and others come.
class AllLostTest : public ControllerTest {
 protected:
  void train_from(Version version) {
    for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link));
    for (Link link = 1; link <= 3; ++link) say(link, version);
    for (Link link = 1; link <= 3; ++link) {
      step(Received{link, wire::Repaired{machine_->generation()}});
    }
    ASSERT_EQ(machine_->stage(), Stage::kRunning);
  }
  void say(Link link, Version version) {
    step(Received{link, wire::Report{machine_->generation(), version, version}});
  }
  void replace_all() {
    for (Link link = 1; link <= 3; ++link) step(ProvenDead{cat("w", link), 10 * link});
    for (Link link = 4; link <= 6; ++link) come(link, who(cat("w", link - 3), 10 * link));
  }
  void say_nothing_is_left() {
    for (Link link = 4; link <= 6; ++link) say(link, kNoVersion);
  }
  void expect_the_end_at(Version version) {
    ASSERT_TRUE(end_);
    EXPECT_FALSE(end_->success);
    EXPECT_EQ(end_->reason,
              (Reason{.kind = Reason::Kind::kNoPlan, .rank = kNoRank, .version = version}));
  }
};

TEST_F(AllLostTest, BeforeTheFirstStepAllBeginAnew) {
  train_from(kNoVersion);
  replace_all();
  say_nothing_is_left();
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(at(Stage::kRepairing, 4)->order.act, wire::Act::kBegin);
}

TEST_F(AllLostTest, AfterAStepOfSomeRankTheJobEnds) {
  train_from(kNoVersion);
  step(Received{2, wire::Progress{1, 1}});
  replace_all();
  say_nothing_is_left();
  expect_the_end_at(1);
}

TEST_F(AllLostTest, WhereTheyHaveGoneOnFromAVersionTheJobEnds) {
  train_from(4);
  replace_all();
  say_nothing_is_left();
  expect_the_end_at(4);
}

TEST_F(AllLostTest, ASchedulerThatTakesOverKnowsThatThereWasAStep) {
  train_from(kNoVersion);
  step(Received{2, wire::Progress{1, 1}});
  machine_.emplace(options_, record_);
  step(Started{});
  replace_all();
  say_nothing_is_left();
  expect_the_end_at(1);
}

// Rank 0 has reported step 5 and is lost. The others have staged step 5, and do not know more.
TEST_F(AllLostTest, AStepThatWasToldOfIsMadeFromWhatOthersHaveStaged) {
  train_from(4);
  step(Received{1, wire::Progress{1, 5}});
  step(ProvenDead{"w1", 10});
  come(4, who("w1", 40));
  say(4, kNoVersion);
  for (const Link link : {Link{2}, Link{3}}) {
    step(Received{link, wire::Report{machine_->generation(), 4, 5}});
  }
  EXPECT_EQ(machine_->head().version, 5U);
  ASSERT_NE(at(Stage::kRepairing, 2), nullptr);
  EXPECT_EQ(at(Stage::kRepairing, 2)->order.act, wire::Act::kFinish);
  EXPECT_EQ(plans_.back().steps_lost, 0U);
}

// Rank 0 has reported steps of which no other rank can know, so the report may be wrong.
TEST_F(AllLostTest, StepsThatNobodyHasAnyMoreAreCountedAsLost) {
  train_from(4);
  step(Received{1, wire::Progress{1, 7}});
  step(ProvenDead{"w1", 10});
  come(4, who("w1", 40));
  say(4, kNoVersion);
  say(2, 4);
  say(3, 4);
  EXPECT_EQ(machine_->head().version, 4U);
  EXPECT_EQ(plans_.back().steps_lost, 3U);
  step(Received{4, wire::Repaired{machine_->generation()}});
  step(Received{2, wire::GroupLost{machine_->generation()}});
  for (const Link link : {Link{2}, Link{3}, Link{4}}) say(link, 4);
  EXPECT_EQ(plans_.back().steps_lost, 0U) << "they were counted once";
}

}  // namespace
}  // namespace holdfast::controller
