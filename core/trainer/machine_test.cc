// What the trainer machine decides, thread by thread.
#include "core/trainer/machine.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <utility>

#include "core/trainer/machine_for_test.h"

namespace holdfast::trainer {
namespace {

TEST_F(TrainerTest, MakesAStep) {
  stand();
  arrive();
  (void)bring(Arrived{});
  (void)take<Update>();
  EXPECT_NE(said<wire::Progress>(bring(Updated{})), nullptr);
  EXPECT_EQ(take<Return>().what, What::kCommitted);
  EXPECT_EQ(machine_->holding(), (Holding{5, 5}));
}

TEST_F(TrainerTest, SaysOnlyTheFirstOfManyQuickSteps) {
  stand();
  for (int i = 0; i < 3; ++i) {
    arrive();
    (void)bring(Arrived{});
    (void)take<Update>();
    EXPECT_EQ(said<wire::Progress>(bring(Updated{})) != nullptr, i == 0);
    (void)take<Return>();
    (void)bring(StepBegun{});
    EXPECT_EQ(take<Return>().what, What::kBegun);
  }
}

TEST_F(TrainerTest, IsSpokenForWhileItWaitsAndLeavesTheStepToThePlan) {
  stand();
  arrive();
  const auto actions = stop(true);
  ASSERT_NE(said<wire::Report>(actions), nullptr);
  // The plan may come before the training thread has run again.
  (void)repair(2, 5, wire::Act::kFinish);
  EXPECT_TRUE(work_.empty());
  (void)bring(Arrived{Outcome::kDone});  // Even a complete barrier decides nothing any more.
  (void)take<LeaveGroup>();
  EXPECT_EQ(said<wire::Report>(bring(LeftGroup{})), nullptr);
  (void)take<Repair>();
  EXPECT_NE(said<wire::Repaired>(bring(Repaired{{5, 5}, ""})), nullptr);
  (void)go(2, 5);
  EXPECT_EQ(take<Return>().what, What::kCommittedByPlan);
}

TEST_F(TrainerTest, IsNotSpokenForWhileASumIsUnderWay) {
  stand();
  (void)bring(StepEnded{});
  EXPECT_EQ(said<wire::Report>(stop(false)), nullptr);
  EXPECT_NE(said<wire::Report>(bring(SumsIdle{})), nullptr);
  (void)take<AwaitSums>();
  (void)bring(SumsDone{Outcome::kStopped});
  (void)take<LeaveGroup>();
}

TEST_F(TrainerTest, AStepThatThePlanDoesNotMakeIsVoid) {
  stand();
  arrive();
  (void)bring(Arrived{Outcome::kStopped});  // A peer has ended the group before the scheduler did.
  EXPECT_EQ(machine_->state(), State::kUncertain);
  EXPECT_NE(said<wire::Report>(stop(true)), nullptr);
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)go(2, 4);
  (void)take<Unstage>();
  EXPECT_EQ(take<Return>().what, What::kVoid);
  EXPECT_EQ(machine_->holding(), (Holding{4, 4}));
}

TEST_F(TrainerTest, FormsAnewWhereAFaultCameBetweenTwoSteps) {
  stand();
  (void)stop(true);
  EXPECT_TRUE(work_.empty());  // The program computes, so nobody reports for it.
  (void)bring(StepBegun{true});
  (void)take<LeaveGroup>();
  EXPECT_NE(said<wire::Report>(bring(LeftGroup{})), nullptr);
  (void)go(2, 4);
  EXPECT_EQ(take<JoinGroup>().generation, 2U);
  (void)bring(Formed{});
  EXPECT_EQ(take<Return>().what, What::kBegunAnew);
}

TEST_F(TrainerTest, AStopOfTheGenerationItTrainsInIsOld) {
  stand();
  EXPECT_TRUE(assign({.generation = 1}).empty());
}

TEST_F(TrainerTest, ReportsOnceItIsParkedAndStopped) {
  EXPECT_TRUE(assign({.generation = 1}).empty());
  const auto actions = bring(JoinCalled{{5, 6}});
  ASSERT_NE(said<wire::Report>(actions), nullptr);
  EXPECT_EQ(*said<wire::Report>(actions), (wire::Report{1, 5, 6}));
}

TEST_F(TrainerTest, IgnoresOrdersOfAGenerationThatWasGivenUp) {
  (void)bring(JoinCalled{{5, 5}});
  (void)assign({.generation = 1});
  EXPECT_NE(said<wire::Report>(assign({.generation = 2})), nullptr);
  EXPECT_TRUE(repair(1, 6, wire::Act::kFinish).empty());
  EXPECT_TRUE(go(1, 5).empty());
  EXPECT_TRUE(has<Resume>(go(2, 5)));
}

TEST_F(TrainerTest, RepairsOnceAndAnswersEveryTime) {
  (void)bring(JoinCalled{{5, 6}});
  (void)repair(1, 6, wire::Act::kFinish);
  (void)take<Repair>();
  EXPECT_TRUE(repair(1, 6, wire::Act::kFinish).empty());
  EXPECT_NE(said<wire::Repaired>(bring(Repaired{{6, 6}, ""})), nullptr);
  EXPECT_NE(said<wire::Repaired>(repair(1, 6, wire::Act::kFinish)), nullptr);
  EXPECT_TRUE(work_.empty());
}

TEST_F(TrainerTest, ReportsWhatItHoldsWhenItWasStoppedWhileRepairing) {
  (void)bring(JoinCalled{});
  (void)repair(1, 5, wire::Act::kReceive);
  const auto stopped = assign({.generation = 2});
  EXPECT_TRUE(has<StopRepair>(stopped));
  EXPECT_EQ(said<wire::Report>(stopped), nullptr);
  const auto actions = bring(Repaired{{5, 5}, ""});
  EXPECT_EQ(said<wire::Repaired>(actions), nullptr);
  ASSERT_NE(said<wire::Report>(actions), nullptr);
  EXPECT_EQ(*said<wire::Report>(actions), (wire::Report{2, 5, 5}));
}

TEST_F(TrainerTest, AStopTakesBackAnOrderThatWaitsForTheThread) {
  stand();
  arrive();
  (void)stop(true);
  (void)go(2, 4);
  EXPECT_NE(said<wire::Report>(assign({.generation = 3})), nullptr);
  (void)bring(Arrived{Outcome::kStopped});
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  EXPECT_TRUE(work_.empty());
  EXPECT_EQ(machine_->generation(), 1U);
  (void)repair(3, 5, wire::Act::kFinish);
  (void)take<Repair>();
}

TEST_F(TrainerTest, WouldRatherFailThanTrainFromAnotherVersion) {
  (void)bring(JoinCalled{{5, 5}});
  EXPECT_FALSE(has<Resume>(go(1, 6)));
  EXPECT_EQ(take<Return>().reason.kind, Reason::Kind::kWrongVersion);
}

TEST_F(TrainerTest, GoesOnlyOnceItIsKnownWhereTheOthersAre) {
  (void)bring(JoinCalled{{4, 4}});
  const wire::Assignment part{.generation = 1, .stage = wire::Stage::kRunning, .version = 4};
  const auto actions = bring(Assigned{part, true, nullptr});
  EXPECT_NE(said<wire::Report>(actions), nullptr);
  EXPECT_FALSE(has<Resume>(actions));
  EXPECT_TRUE(has<Resume>(assign(part)));
}

TEST_F(TrainerTest, SaysItsEndAgainAfterAReconnection) {
  stand();
  EXPECT_NE(said<wire::Finished>(bring(EndCalled{})), nullptr);
  EXPECT_TRUE(assign({.generation = 1}).empty());
  const auto again = assign({.generation = 1}, true);
  ASSERT_NE(said<wire::Finished>(again), nullptr);
  EXPECT_EQ(*said<wire::Finished>(again), (wire::Finished{1, 4}));
  (void)bring(Released{});
  EXPECT_EQ(take<Return>().what, What::kEnded);
}

TEST_F(TrainerTest, AFarewellIsNothingToWhoStillTrains) {
  stand();
  EXPECT_TRUE(bring(Released{}).empty());
}

TEST_F(TrainerTest, EndsWhereNobodyTellsOfAFault) {
  stand();
  arrive();
  (void)bring(Arrived{Outcome::kStopped});
  ASSERT_TRUE(machine_->deadline().has_value());
  now_ = *machine_->deadline();
  (void)bring(TimePassed{});
  EXPECT_EQ(take<Return>().reason.kind, wire::Reason::Kind::kNoCause);
}

TEST_F(TrainerTest, RanksThatDoNotDoTheSameFail) {
  stand();
  (void)bring(StepEnded{});
  (void)take<AwaitSums>();
  (void)bring(SumsDone{Outcome::kRefused, "rank 1 asked for a broadcast"});
  const Return result = take<Return>();
  EXPECT_EQ(result.what, What::kFailed);
  EXPECT_EQ(result.reason.kind, wire::Reason::Kind::kNotTheSame);
  EXPECT_EQ(result.reason.detail, "rank 1 asked for a broadcast");
}

TEST_F(TrainerTest, AnUnprotectedTrainingEndsAtTheFirstFault) {
  options_.protect = false;
  machine_.emplace(options_);
  stand();
  (void)bring(StepEnded{});
  (void)take<AwaitSums>();
  (void)bring(SumsDone{});
  (void)take<Stage>();
  (void)bring(Staged{});
  (void)take<Update>();  // There is no barrier.
  (void)bring(Updated{});
  (void)take<Return>();
  (void)stop(true);
  (void)bring(StepBegun{true});
  const Return result = take<Return>();
  EXPECT_EQ(result.what, What::kFailed);
  EXPECT_EQ(result.reason.kind, wire::Reason::Kind::kUnprotected);
}

// A report would lead to a plan, which could only name what is missing, not the cause.
TEST_F(TrainerTest, NobodySpeaksForAnUnprotectedRank) {
  options_.protect = false;
  machine_.emplace(options_);
  stand();
  (void)bring(StepEnded{});
  (void)take<AwaitSums>();
  EXPECT_EQ(said<wire::Report>(stop(true)), nullptr);
  (void)bring(SumsDone{.outcome = Outcome::kStopped});
  EXPECT_EQ(take<Return>().reason.kind, wire::Reason::Kind::kUnprotected);
}

TEST_F(TrainerTest, ARepairThatEndsElsewhereFails) {
  (void)bring(JoinCalled{{4, 4}});
  (void)repair(1, 5, wire::Act::kReceive);
  (void)take<Repair>();
  (void)bring(Repaired{{kNoVersion, kNoVersion}, "the source is lost"});
  EXPECT_EQ(take<Return>().reason.kind, wire::Reason::Kind::kNotRepaired);
}

TEST_F(TrainerTest, IsTooLateWhereAnotherHasEnded) {
  (void)bring(JoinCalled{{4, 4}});
  (void)go(1, 4, 2);
  EXPECT_EQ(take<Return>().what, What::kJoined);
  (void)bring(StepBegun{});
  const Return result = take<Return>();
  EXPECT_EQ(result.what, What::kTooLate);
  EXPECT_EQ(result.ended, 2);
}

TEST_F(TrainerTest, HearsTheEndOfTheJobWhereItWaits) {
  stand();
  const JobOver over{false, {.kind = wire::Reason::Kind::kProgram, .rank = 1}};
  EXPECT_TRUE(has<StopGroup>(bring(over)));
  EXPECT_TRUE(work_.empty());  // The program computes.
  arrive();
  (void)bring(Arrived{Outcome::kStopped});
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  const Return result = take<Return>();
  EXPECT_EQ(result.what, What::kOver);
  EXPECT_EQ(result.reason.rank, 1);
  (void)bring(StepBegun{});  // A further call gets the same answer.
  EXPECT_EQ(take<Return>().what, What::kOver);
}

// It does not know which step is the last one, and waits for the workers in the next.
TEST_F(TrainerTest, AServerEndsWithTheJob) {
  options_.serves = true;
  machine_.emplace(options_);
  stand();
  EXPECT_TRUE(has<StopGroup>(bring(JobOver{true, {.kind = wire::Reason::Kind::kAllEnded}})));
  (void)bring(StepBegun{true});
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  EXPECT_EQ(take<Return>().what, What::kEnded);
  (void)bring(EndCalled{});
  EXPECT_EQ(take<Return>().what, What::kEnded);
}

// A part of a snapshot is taken at exactly the version that was asked for.
TEST_F(TrainerTest, TakesASnapshotWhenItHasMadeTheStep) {
  using Word = wire::SnapshotWord;
  stand();
  EXPECT_TRUE(bring(SnapshotAsked{1, 6}).empty());
  arrive();
  (void)bring(Arrived{});
  EXPECT_FALSE(take<Update>().keeps) << "this is step 5";
  (void)bring(Updated{});
  (void)take<Return>();
  (void)bring(StepBegun{});
  (void)take<Return>();
  arrive();
  (void)bring(Arrived{});
  EXPECT_TRUE(take<Update>().keeps);
  EXPECT_EQ(said<wire::Snapshot>(bring(Updated{})), nullptr) << "it is copied beside the next step";
  (void)take<Return>();
  (void)bring(StepBegun{});
  EXPECT_TRUE(bring(SnapshotAsked{1, 9}).empty());
  EXPECT_EQ(said<wire::Snapshot>(bring(PartKept{5, ""})), nullptr) << "of an earlier round";
  const auto taken_actions = bring(PartKept{6, ""});
  const auto* taken = said<wire::Snapshot>(taken_actions);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->word, Word::kTaken);
  EXPECT_EQ(taken->version, 6U);
}

TEST_F(TrainerTest, SaysWhyItCouldNotTakeASnapshot) {
  stand();
  (void)bring(SnapshotAsked{1, 5});
  arrive();
  (void)bring(Arrived{});
  EXPECT_TRUE(take<Update>().keeps);
  (void)bring(Updated{});
  const auto failed_actions = bring(PartKept{5, "no room"});
  const auto* failed = said<wire::Snapshot>(failed_actions);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->word, wire::SnapshotWord::kFailed);
  EXPECT_EQ(failed->why, "no room");
}

TEST_F(TrainerTest, SaysThatItWasAskedTooLate) {
  stand();
  for (const auto& [generation, version] : {std::pair<Generation, Version>{1, 4}, {2, 9}}) {
    const auto missed_actions = bring(SnapshotAsked{generation, version});
    const auto* missed = said<wire::Snapshot>(missed_actions);
    ASSERT_NE(missed, nullptr);
    EXPECT_EQ(missed->word, wire::SnapshotWord::kMissed);
  }
  arrive();
  (void)bring(Arrived{});
  EXPECT_FALSE(take<Update>().keeps);
  const auto late = bring(SnapshotAsked{1, 5});
  ASSERT_NE(said<wire::Snapshot>(late), nullptr) << "the update is under way";
  EXPECT_EQ(said<wire::Snapshot>(late)->word, wire::SnapshotWord::kMissed);
}

TEST_F(TrainerTest, ASnapshotOfAGenerationThatHasEndedIsNotTaken) {
  stand();
  (void)bring(SnapshotAsked{1, 5});
  arrive();
  (void)stop(true);
  (void)bring(Arrived{Outcome::kStopped});
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)go(2, 4);
  (void)take<Unstage>();
  EXPECT_EQ(take<Return>().what, What::kVoid);
  begin();
  arrive();
  (void)bring(Arrived{});
  EXPECT_FALSE(take<Update>().keeps);
}

TEST_F(TrainerTest, ASnapshotThatCanNotBeReadEndsNothing) {
  (void)bring(JoinCalled{});
  (void)assign({.generation = 1});
  (void)repair(1, 7, wire::Act::kLoad);
  EXPECT_EQ(take<Repair>().order.act, wire::Act::kLoad);
  const auto unreadable_actions = bring(Repaired{{}, "damaged"});
  const auto* unreadable = said<wire::Snapshot>(unreadable_actions);
  ASSERT_NE(unreadable, nullptr);
  EXPECT_EQ(unreadable->word, wire::SnapshotWord::kUnreadable);
  EXPECT_EQ(unreadable->why, "damaged");
  EXPECT_TRUE(work_.empty());
  const auto report_actions = assign({.generation = 2});
  const auto* report = said<wire::Report>(report_actions);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->version, kNoVersion);
  (void)repair(2, 5, wire::Act::kLoad);
  (void)take<Repair>();
  EXPECT_NE(said<wire::Repaired>(bring(Repaired{{5, 5}, ""})), nullptr);
}

TEST_F(TrainerTest, AWorldOfItsOwnNeedsNobody) {
  options_.solo = true;
  machine_.emplace(options_);
  (void)bring(JoinCalled{});
  EXPECT_EQ(take<Repair>().order.act, wire::Act::kBegin);
  (void)bring(Repaired{{0, 0}, ""});
  EXPECT_EQ(take<Return>().what, What::kJoined);
  begin();
  (void)bring(EndCalled{});
  EXPECT_EQ(take<Return>().what, What::kEnded);
}

// P38: without a scheduler nobody could tell the rank that a peer is dead.
TEST_F(TrainerTest, WithoutASchedulerItWaitsForItsPeersForSoLongOnly) {
  stand();
  arrive();
  const Reason why{.kind = Reason::Kind::kOutOfReach};
  EXPECT_FALSE(has<StopGroup>(bring(OutOfReach{why})));
  now_ += options_.replacement_timeout;
  EXPECT_TRUE(has<StopGroup>(bring(OutOfReach{why})));
  EXPECT_TRUE(bring(GroupStopped{true}).empty());
  (void)bring(Arrived{Outcome::kStopped});
  EXPECT_EQ(take<Return>().reason, why);
}

TEST_F(TrainerTest, AStepThatTakesItsTimeGoesOnWithAScheduler) {
  stand();
  arrive();
  (void)bring(OutOfReach{{.kind = Reason::Kind::kOutOfReach}});
  (void)bring(InReach{});
  now_ += options_.replacement_timeout;
  (void)bring(Arrived{});
  (void)take<Update>();
  (void)bring(Updated{});
  EXPECT_EQ(take<Return>().what, What::kCommitted);
}

// P50: the private part is on another host before the step can be committed.
class ExchangeTest : public TrainerTest {
 protected:
  // As stand(), with a copy of rank 3's private part.
  void stand_holding() {
    (void)bring(JoinCalled{{4, 4, true}});
    (void)go(1, 4);
    (void)take<Return>();
    (void)bring(StepBegun{});
    (void)take<JoinGroup>();
    (void)bring(Formed{.linked = true, .exchanges = true, .held = {{3, 4, 4}}});
    (void)take<Return>();
  }
  void stage() {
    (void)bring(StepEnded{});
    (void)take<AwaitSums>();
    (void)bring(SumsDone{});
    (void)take<Stage>();
    (void)bring(Staged{});
    EXPECT_EQ(take<ExchangeCopies>().version, 5U);
  }
};

TEST_F(ExchangeTest, ArrivesOnceTheCopiesAreExchanged) {
  stand_holding();
  stage();
  (void)bring(CopiesExchanged{.held = {{3, 4, 5}}});
  (void)take<Arrive>();
  (void)bring(Arrived{});
  (void)take<Update>();
  (void)bring(Updated{});
  EXPECT_EQ(take<Return>().what, What::kCommitted);
  EXPECT_EQ(machine_->holding(), (Holding{5, 5, true, {{3, 5, 5}}}));
}

TEST_F(ExchangeTest, SaysWhatItHoldsOnceAFaultHasMetIt) {
  stand_holding();
  stage();
  const auto actions = stop(true);
  ASSERT_NE(said<wire::Report>(actions), nullptr);
  EXPECT_EQ(*said<wire::Report>(actions), (wire::Report{2, 4, 5, true, {{3, 4, 4}}}));
  (void)bring(CopiesExchanged{.outcome = Outcome::kStopped, .held = {{3, 4, 5}}});
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)go(2, 4);
  (void)take<Unstage>();
  EXPECT_EQ(take<Return>().what, What::kVoid);
  EXPECT_EQ(machine_->holding(), (Holding{4, 4, true, {{3, 4, 4}}}));
}

TEST_F(ExchangeTest, SaysAtTheBarrierWhatHasCome) {
  stand_holding();
  stage();
  (void)bring(CopiesExchanged{.held = {{3, 4, 5}}});
  (void)take<Arrive>();
  const auto actions = stop(true);
  ASSERT_NE(said<wire::Report>(actions), nullptr);
  EXPECT_EQ(*said<wire::Report>(actions), (wire::Report{2, 4, 5, true, {{3, 4, 5}}}));
}

TEST_F(ExchangeTest, DropsWhatItHoldsNoMoreWithTheNextStep) {
  stand_holding();
  stage();
  (void)bring(CopiesExchanged{.held = {{2, 4, 4}, {3, 4, 5}}});
  (void)take<Arrive>();
  (void)bring(Arrived{});
  (void)take<Update>();
  (void)bring(Updated{});
  EXPECT_EQ(machine_->holding().held, (std::vector<wire::HeldCopy>{{3, 5, 5}}));
}

TEST(TrainerTable, NamesEveryStateAndLeadsFromTheFirstToEach) {
  std::set<State> reached{State::kOpened, State::kOver};
  for (std::size_t round = 0; round < kStates; ++round) {
    for (const auto& row : transitions()) {
      if (reached.contains(row.from)) reached.insert(row.to);
    }
  }
  EXPECT_EQ(reached.size(), kStates);
  for (const State state : reached) EXPECT_NE(std::string(name(state)), "");
}

}  // namespace
// If a connection between hosts fails, no rank is dead: the scheduler hears of it from the ranks.
TEST_F(TrainerTest, SaysThatALinkedGroupHasEndedUntilItHearsWhy) {
  stand(true);
  arrive();
  EXPECT_EQ(said<wire::GroupLost>(bring(Arrived{.outcome = Outcome::kStopped})), nullptr);
  EXPECT_EQ(machine_->state(), State::kUncertain);
  for (int times = 0; times < 3; ++times) {
    now_ = *machine_->deadline();
    EXPECT_NE(said<wire::GroupLost>(bring(TimePassed{})), nullptr);
  }
  EXPECT_NE(said<wire::Report>(stop(true)), nullptr);
  EXPECT_EQ(machine_->state(), State::kLeaving);
}

TEST_F(TrainerTest, GivesUpALinkedGroupOfWhoseEndNobodyTells) {
  stand(true);
  arrive();
  (void)bring(Arrived{.outcome = Outcome::kStopped});
  const Instant end = now_ + options_.replacement_timeout;
  while (machine_->deadline() && machine_->state() == State::kUncertain) {
    now_ = *machine_->deadline();
    (void)bring(TimePassed{});
  }
  EXPECT_EQ(take<Return>().reason.kind, Reason::Kind::kNoCause);
  EXPECT_GE(now_, end);
}

TEST_F(TrainerTest, SaysSoAlsoOfALinkedGroupThatCouldNotBeFormed) {
  (void)bring(JoinCalled{{4, 4}});
  (void)go(1, 4);
  (void)take<Return>();
  (void)bring(StepBegun{});
  (void)take<JoinGroup>();
  (void)bring(NotFormed{.why = "a link has ended", .linked = true});
  now_ = *machine_->deadline();
  EXPECT_NE(said<wire::GroupLost>(bring(TimePassed{})), nullptr);
  // The rank goes on saying so until it gives up.
  while (machine_->deadline() && machine_->state() == State::kUncertain) {
    now_ = *machine_->deadline();
    (void)bring(TimePassed{});
  }
  EXPECT_EQ(take<Return>().reason.kind, Reason::Kind::kNotFormed);
}

TEST_F(TrainerTest, OfAGroupWithoutLinksOnlyADeathIsTheEnd) {
  stand();
  arrive();
  (void)bring(Arrived{.outcome = Outcome::kStopped});
  now_ += 2s;
  EXPECT_EQ(said<wire::GroupLost>(bring(TimePassed{})), nullptr);
}

}  // namespace holdfast::trainer
