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

TEST_F(AgentTest, TheExitCodeIsNotThatOfAProcessThatWasReplaced) {
  start();
  step(LinkUp{});
  dies(at("w0"), 137);
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kProgram, .rank = 0}}});
  for (const char* node : {"w0", "w1", kSchedulerNode}) dies(at(node), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 1);
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
  dies(at(kSchedulerNode), 137);  // The next scheduler comes after a pause.
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

// The agent's link to the scheduler may hang while its processes hear of the end at once.
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

// An agent on another host than the scheduler's, in a job that has more ranks elsewhere.
class StayTest : public AgentTest {
 protected:
  void all_end(std::int32_t code) {
    dies(at("w0"), code);
    dies(at("w1"), code);
  }
  void fail() {
    step(Interrupted{2});
    all_end(143);
  }
  void wait_in_vain() { step(PauseOver{pauses_.back().pause}); }
  [[nodiscard]] std::int32_t code() const { return exit_ ? exit_->code : -1; }
  void SetUp() override { start(0, 1, false, 4); }
};

TEST_F(StayTest, StaysUntilTheEndOfTheJobAndEndsLikeIt) {
  step(LinkUp{});
  all_end(0);
  step(GraceOver{});
  EXPECT_FALSE(exit_);
  EXPECT_TRUE(stays_.empty()) << "there is nothing that a user has to know";
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kProgram}}});
  EXPECT_EQ(code(), 1);
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kProgram);
}

TEST_F(StayTest, StartsWhatItIsGivenAfterItsOwnHaveEnded) {
  step(LinkUp{});
  all_end(0);
  step(Received{wire::Places{{"w0", "w1", "w3"}}});
  dies(at("w3"), 0);
  EXPECT_FALSE(exit_);
  step(Received{wire::JobEnded{true, {}}});
  EXPECT_EQ(code(), 0);
}

TEST_F(StayTest, TellsTheNextSchedulerThatAllHaveEndedAndWaitsOn) {
  step(LinkUp{});
  all_end(0);
  step(LinkDown{});
  EXPECT_EQ(stays_.size(), 1U);
  said_.clear();
  step(LinkUp{});
  const auto state = std::get<wire::AgentState>(said_.back());
  EXPECT_EQ(state.places[0].ending, ending(0));
  wait_in_vain();  // A scheduler has come since, so the time is not up.
  EXPECT_FALSE(exit_);
  step(LinkDown{});
  wait_in_vain();
  EXPECT_EQ(code(), 0);
}

TEST_F(StayTest, WaitsForItsFirstSchedulerForAWhile) {
  all_end(0);
  ASSERT_EQ(stays_.size(), 1U);
  EXPECT_EQ(stays_[0].at_most, kLastWord);
  step(OutOfReach{"no scheduler"});
  EXPECT_FALSE(exit_);
  wait_in_vain();
  EXPECT_EQ(code(), 0);
}

TEST_F(StayTest, LeavesWithTheNextSignal) {
  step(LinkUp{});
  all_end(0);
  said_.clear();
  step(Interrupted{2});
  EXPECT_EQ(code(), 0);
  EXPECT_TRUE(said_.empty()) << "the job goes on";
}

TEST_F(StayTest, WaitsForTheAnswerToItsFailure) {
  step(LinkUp{});
  fail();
  EXPECT_TRUE(std::holds_alternative<wire::Failed>(said_.back()));
  EXPECT_FALSE(exit_);
  EXPECT_EQ(pauses_.back().how_long, kAnswer);
  step(LinkDown{});
  said_.clear();
  step(LinkUp{});
  EXPECT_TRUE(std::holds_alternative<wire::Failed>(said_.back()));
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kInterrupted}}});
  EXPECT_EQ(code(), 130);
}

// A cluster's scheduler signals all hosts of a job, and some hear of the others' end first.
TEST_F(StayTest, EndsWithTheCodeOfTheSignalThatAnotherHostGot) {
  step(LinkUp{});
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kInterrupted, .count = 15}}});
  all_end(143);
  EXPECT_EQ(code(), 143);
}

TEST_F(StayTest, EndsWithTheCodeOfAnOrderThatAnotherHostGot) {
  step(LinkUp{});
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kStopped}}});
  all_end(143);
  EXPECT_EQ(code(), 143);
}

TEST_F(StayTest, EndsWithOneForAnyOtherReasonAndForWhatIsNoSignal) {
  step(LinkUp{});
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kInterrupted, .count = 1000}}});
  all_end(143);
  EXPECT_EQ(code(), 1);
}

TEST_F(StayTest, WaitsForTheAnswerNoLongerThanForAWhile) {
  step(LinkUp{});
  fail();
  wait_in_vain();
  EXPECT_EQ(code(), 130);
}

TEST_F(StayTest, WaitsForTheSchedulerThatItHasNeverReachedToTellItsFailure) {
  fail();
  ASSERT_EQ(stays_.size(), 1U);
  EXPECT_EQ(stays_[0].at_most, kLastWord);
  EXPECT_EQ(stays_[0].code, 130);
  step(Interrupted{2});
  EXPECT_EQ(code(), 130);
}

TEST_F(StayTest, DoesNotWaitForWhoRefusesIt) {
  step(LinkUp{});
  step(Received{wire::Refused{{}, {.kind = Reason::Kind::kOtherJob}}});
  all_end(143);
  EXPECT_EQ(code(), 1);
}

TEST_F(StayTest, ShowsByBeatsThatItLivesWhereOthersCanNotSee) {
  step(LinkUp{});
  EXPECT_FALSE(machine_->beats());
  step(LinkUp{.is_far = true});
  EXPECT_TRUE(machine_->beats());
  EXPECT_TRUE(std::holds_alternative<wire::Heartbeat>(said_.back()));
  step(LinkDown{});
  EXPECT_FALSE(machine_->beats());
}

TEST_F(AgentTest, EndsItsHostOnOrderIfItsJobTakesDrills) {
  const wire::Drill kill{.kind = wire::DrillKind::kKill, .host = "host"};
  const wire::Drill stop{.kind = wire::DrillKind::kStop, .host = "host"};
  start();
  step(Received{kill});
  EXPECT_TRUE(ends_.empty());
  EXPECT_EQ(told_.back().kind, Reason::Kind::kNoDrills);
  takes_drills_ = true;
  start();
  for (const auto& drill : {stop, kill}) step(Received{drill});
  EXPECT_EQ(ends_, (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace holdfast::agent
