// What an agent does that is told to end, in a job that makes snapshots.
#include <gtest/gtest.h>

#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

// A snapshot that the scheduler has made, or not, before the processes end.
class SnapshotFirst : public AgentTest {
 protected:
  void interrupt() {
    patience_ = std::chrono::seconds(20);
    start();
    step(LinkUp{});
    said_.clear();
    step(Interrupted{15});
    EXPECT_TRUE(killed_.empty()) << "they train on";
    ASSERT_EQ(said_.size(), 1U);
    EXPECT_EQ(std::get<wire::Snapshot>(said_[0]).word, wire::SnapshotWord::kAsk);
    EXPECT_EQ(told_.back().kind, Reason::Kind::kSnapshotFirst);
  }
  void all_die() {
    for (const char* node : {"w0", "w1", kSchedulerNode}) dies(at(node), 143);
  }
  void hear(wire::SnapshotWord word) {
    step(Received{wire::Snapshot{.word = word, .version = 7, .name = "7", .why = "no room"}});
  }
};

TEST_F(SnapshotFirst, AnInterruptWaitsForASnapshot) {
  interrupt();
  dies(at("w0"), 137);
  EXPECT_EQ(places_.at("w0").attempt, 2U) << "the job goes on until then";
  hear(wire::SnapshotWord::kNamed);
  EXPECT_EQ(told_.back().kind, Reason::Kind::kSnapshotMade);
  EXPECT_EQ(killed_.size(), 2U);
  all_die();
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 143);
}

// Else the ranks would make no snapshot, and no handler of theirs could save anything.
TEST_F(SnapshotFirst, APausedJobGoesOnSoThatItCanEnd) {
  for (const auto patience : {std::chrono::seconds(20), std::chrono::seconds(0)}) {
    patience_ = patience;
    start();
    step(LinkUp{});
    step(Received{wire::Pause{.on = true}});
    said_.clear();
    step(Interrupted{15});
    ASSERT_FALSE(said_.empty());
    EXPECT_EQ(std::get<wire::Pause>(said_[0]), wire::Pause{});
    EXPECT_EQ(killed_.empty(), patience > std::chrono::seconds(0));
  }
}

TEST_F(SnapshotFirst, ItEndsWithoutOneIfThereIsNone) {
  interrupt();
  hear(wire::SnapshotWord::kFailed);
  EXPECT_EQ(told_.back().kind, Reason::Kind::kSnapshotLacking);
  EXPECT_EQ(told_.back().detail, "no room");
  EXPECT_EQ(killed_.size(), 2U);
}

TEST_F(SnapshotFirst, ItWaitsNoLongerThanItMay) {
  interrupt();
  ASSERT_FALSE(pauses_.empty());
  const auto& pause = pauses_.at(pauses_.size() - 2);
  EXPECT_EQ(pause.how_long, patience_);
  step(PauseOver{pause.pause});
  EXPECT_EQ(killed_.size(), 2U);
  hear(wire::SnapshotWord::kNamed);  // Too late.
  EXPECT_EQ(killed_.size(), 2U);
}

TEST_F(SnapshotFirst, ASecondSignalDoesNotWait) {
  interrupt();
  step(Interrupted{15});
  EXPECT_TRUE(killed_.empty()) << "the launcher has passed it on";
  step(PauseOver{pauses_.back().pause});
  step(Interrupted{15});
  EXPECT_EQ(killed_.size(), 2U);
}

// What its processes leave is worth a snapshot. They may have made steps that it has not heard of.
TEST_F(SnapshotFirst, WhatIsLeftMayBeUnsaved) {
  start();
  step(LinkUp{});
  step(Interrupted{15});
  all_die();
  ASSERT_TRUE(exit_.has_value());
  EXPECT_TRUE(exit_->may_be_unsaved);
}

TEST_F(SnapshotFirst, AnOrderToStopIsAnInterrupt) {
  start();
  step(LinkUp{});
  step(Received{wire::JobProgress{1, 5}});
  hear(wire::SnapshotWord::kStop);
  EXPECT_EQ(killed_.size(), 2U);
  all_die();
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 143);
  EXPECT_FALSE(exit_->may_be_unsaved) << "one was made for it";
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kStopped);
}

}  // namespace
}  // namespace holdfast::agent
