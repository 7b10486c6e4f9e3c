// What the trainer machine decides, thread by thread.
#include "core/trainer/machine.h"

#include <gtest/gtest.h>

#include <set>

namespace holdfast::trainer {
namespace {

using namespace std::chrono_literals;
using wire::Reason;
using What = Return::What;

class TrainerTest : public ::testing::Test {
 protected:
  Actions bring(const Event& event) {
    now_ += 1ms;
    auto actions = machine_.step(now_, event);
    for (const auto& action : actions) {
      if (const auto* given = std::get_if<Do>(&action)) work_.push_back(given->work);
    }
    return actions;
  }
  // The training thread takes its next work, which must be of this kind.
  template <class Kind>
  Kind take() {
    if (work_.empty() || !std::holds_alternative<Kind>(work_.front())) {
      ADD_FAILURE() << "other work, or none";
      return {};
    }
    Kind work = std::get<Kind>(work_.front());
    work_.erase(work_.begin());
    return work;
  }
  template <class Kind>
  static bool has(const Actions& actions) {
    for (const auto& action : actions) {
      if (std::holds_alternative<Kind>(action)) return true;
    }
    return false;
  }
  // In the group of generation 1, between two steps, at version 4.
  void stand(bool linked = false) {
    (void)bring(JoinCalled{{4, 4}});
    (void)bring(GoOrdered{1, 4});
    EXPECT_EQ(take<Return>().what, What::kJoined);
    begin(linked);
  }
  void begin(bool linked = false) {
    (void)bring(StepBegun{});
    (void)take<JoinGroup>();
    (void)bring(Formed{.linked = linked});
    EXPECT_EQ(take<Return>().what, What::kBegun);
  }
  void arrive() {
    (void)bring(StepEnded{});
    (void)take<AwaitSums>();
    (void)bring(SumsDone{});
    (void)take<Stage>();
    (void)bring(Staged{});
    (void)take<Arrive>();
  }
  // A Stop of generation 2, as the member machine passes it on.
  Actions stop(bool idle) {
    EXPECT_TRUE(has<StopGroup>(bring(Stopped{1})));
    return bring(GroupStopped{idle});
  }

  Options options_{.replacement_timeout = 60s,
                   .link_patience = 1s,
                   .forming_patience = 20s,
                   .scheduler_timeout = 30s,
                   .progress_interval = 250ms};
  Machine machine_{options_};
  std::vector<Work> work_;
  Instant now_{};
};

TEST_F(TrainerTest, MakesAStep) {
  stand();
  arrive();
  (void)bring(Arrived{});
  (void)take<Update>();
  EXPECT_TRUE(has<SayCommitted>(bring(Updated{})));
  EXPECT_EQ(take<Return>().what, What::kCommitted);
  EXPECT_EQ(machine_.holding(), (Holding{5, 5}));
}

TEST_F(TrainerTest, SaysOnlyTheFirstOfManyQuickSteps) {
  stand();
  for (int i = 0; i < 3; ++i) {
    arrive();
    (void)bring(Arrived{});
    (void)take<Update>();
    EXPECT_EQ(has<SayCommitted>(bring(Updated{})), i == 0);
    (void)take<Return>();
    (void)bring(StepBegun{});
    EXPECT_EQ(take<Return>().what, What::kBegun);
  }
}

TEST_F(TrainerTest, IsSpokenForWhileItWaitsAndLeavesTheStepToThePlan) {
  stand();
  arrive();
  const auto actions = stop(true);
  ASSERT_TRUE(has<SayParked>(actions));
  // The plan may come before the thread has run again.
  (void)bring(RepairOrdered{2, 5, {wire::Act::kFinish, {}}});
  EXPECT_TRUE(work_.empty());
  (void)bring(Arrived{Outcome::kDone});  // Complete or not: it is not its to decide any more.
  (void)take<LeaveGroup>();
  EXPECT_FALSE(has<SayParked>(bring(LeftGroup{})));
  (void)take<Repair>();
  EXPECT_TRUE(has<SayRepaired>(bring(Repaired{{5, 5}, ""})));
  (void)bring(GoOrdered{2, 5});
  EXPECT_EQ(take<Return>().what, What::kCommittedByPlan);
}

TEST_F(TrainerTest, IsNotSpokenForWhileASumIsUnderWay) {
  stand();
  (void)bring(StepEnded{});
  EXPECT_FALSE(has<SayParked>(stop(false)));
  EXPECT_TRUE(has<SayParked>(bring(SumsIdle{})));
  (void)take<AwaitSums>();
  (void)bring(SumsDone{Outcome::kStopped});
  (void)take<LeaveGroup>();
}

TEST_F(TrainerTest, AStepThatThePlanDoesNotMakeIsVoid) {
  stand();
  arrive();
  (void)bring(Arrived{Outcome::kStopped});  // A peer's word came before the scheduler's.
  EXPECT_EQ(machine_.state(), State::kUncertain);
  EXPECT_TRUE(has<SayParked>(stop(true)));
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)bring(GoOrdered{2, 4});
  (void)take<Unstage>();
  EXPECT_EQ(take<Return>().what, What::kVoid);
  EXPECT_EQ(machine_.holding(), (Holding{4, 4}));
}

TEST_F(TrainerTest, FormsAnewWhereAFaultCameBetweenTwoSteps) {
  stand();
  (void)stop(true);
  EXPECT_TRUE(work_.empty());  // The program computes; nobody speaks for it.
  (void)bring(StepBegun{true});
  (void)take<LeaveGroup>();
  EXPECT_TRUE(has<SayParked>(bring(LeftGroup{})));
  (void)bring(GoOrdered{2, 4});
  EXPECT_EQ(take<JoinGroup>().generation, 2U);
  (void)bring(Formed{});
  EXPECT_EQ(take<Return>().what, What::kBegunAnew);
}

TEST_F(TrainerTest, AStopOfAnOlderGenerationChangesNothing) {
  stand();
  EXPECT_FALSE(has<StopGroup>(bring(Stopped{0})));
  EXPECT_EQ(machine_.aborted(), 0U);
}

TEST_F(TrainerTest, EndsWhereNobodyTellsOfAFault) {
  stand();
  arrive();
  (void)bring(Arrived{Outcome::kStopped});
  ASSERT_TRUE(machine_.deadline().has_value());
  now_ = *machine_.deadline();
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
  machine_ = Machine(options_);
  stand();
  (void)bring(StepEnded{});
  (void)take<AwaitSums>();
  (void)bring(SumsDone{});
  (void)take<Stage>();
  (void)bring(Staged{});
  (void)take<Update>();  // Without a barrier.
  (void)bring(Updated{});
  (void)take<Return>();
  (void)stop(true);
  (void)bring(StepBegun{true});
  const Return result = take<Return>();
  EXPECT_EQ(result.what, What::kFailed);
  EXPECT_EQ(result.reason.kind, wire::Reason::Kind::kUnprotected);
}

// A report would lead to a plan, which could only say what is missing.
TEST_F(TrainerTest, NobodySpeaksForAnUnprotectedRank) {
  options_.protect = false;
  machine_ = Machine(options_);
  stand();
  (void)bring(StepEnded{});
  (void)take<AwaitSums>();
  EXPECT_FALSE(has<SayParked>(stop(true)));
  (void)bring(SumsDone{.outcome = Outcome::kStopped});
  EXPECT_EQ(take<Return>().reason.kind, wire::Reason::Kind::kUnprotected);
}

TEST_F(TrainerTest, ARepairThatEndsElsewhereFails) {
  (void)bring(JoinCalled{{4, 4}});
  (void)bring(RepairOrdered{1, 5, {wire::Act::kReceive, {}}});
  (void)take<Repair>();
  (void)bring(Repaired{{kNoVersion, kNoVersion}, "the source is lost"});
  EXPECT_EQ(take<Return>().reason.kind, wire::Reason::Kind::kNotRepaired);
}

TEST_F(TrainerTest, IsTooLateWhereAnotherHasEnded) {
  (void)bring(JoinCalled{{4, 4}});
  (void)bring(GoOrdered{1, 4, 2});
  EXPECT_EQ(take<Return>().what, What::kJoined);
  (void)bring(StepBegun{});
  const Return result = take<Return>();
  EXPECT_EQ(result.what, What::kTooLate);
  EXPECT_EQ(result.ended, 2);
}

TEST_F(TrainerTest, HearsTheEndOfTheJobWhereItWaits) {
  stand();
  (void)bring(JobOver{false, {.kind = wire::Reason::Kind::kProgram, .rank = 1}});
  EXPECT_TRUE(work_.empty());  // The program computes.
  arrive();
  (void)bring(Arrived{Outcome::kStopped});
  const Return result = take<Return>();
  EXPECT_EQ(result.what, What::kOver);
  EXPECT_EQ(result.reason.rank, 1);
  (void)bring(StepBegun{});  // It hears the same again.
  EXPECT_EQ(take<Return>().what, What::kOver);
}

TEST_F(TrainerTest, AWorldOfItsOwnNeedsNobody) {
  options_.solo = true;
  machine_ = Machine(options_);
  (void)bring(JoinCalled{});
  EXPECT_EQ(take<Repair>().order.act, wire::Act::kBegin);
  (void)bring(Repaired{{0, 0}, ""});
  EXPECT_EQ(take<Return>().what, What::kJoined);
  begin();
  (void)bring(EndCalled{});
  EXPECT_EQ(take<Return>().what, What::kEnded);
}

// P38: nobody could tell it that a peer is dead.
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

// P50: what only this rank has lies on another host before the step can be committed.
class PassingTest : public TrainerTest {
 protected:
  // At version 4, in the group of generation 1, holding that of rank 3.
  void stand_holding() {
    (void)bring(JoinCalled{{4, 4, true}});
    (void)bring(GoOrdered{1, 4});
    (void)take<Return>();
    (void)bring(StepBegun{});
    (void)take<JoinGroup>();
    (void)bring(Formed{.linked = true, .passes = true, .held = {{3, 4, 4}}});
    (void)take<Return>();
  }
  void stage() {
    (void)bring(StepEnded{});
    (void)take<AwaitSums>();
    (void)bring(SumsDone{});
    (void)take<Stage>();
    (void)bring(Staged{});
    EXPECT_EQ(take<PassCopies>().version, 5U);
  }
  static const Holding* parked(const Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* said = std::get_if<SayParked>(&action)) return &said->holding;
    }
    return nullptr;
  }
};

TEST_F(PassingTest, ArrivesOnceItHasPassed) {
  stand_holding();
  stage();
  (void)bring(Passed{.held = {{3, 4, 5}}});
  (void)take<Arrive>();
  (void)bring(Arrived{});
  (void)take<Update>();
  (void)bring(Updated{});
  EXPECT_EQ(take<Return>().what, What::kCommitted);
  EXPECT_EQ(machine_.holding(), (Holding{5, 5, true, {{3, 5, 5}}}));
}

TEST_F(PassingTest, SaysWhatItHoldsOnceAFaultHasMetIt) {
  stand_holding();
  stage();
  const auto actions = stop(true);
  ASSERT_NE(parked(actions), nullptr);
  EXPECT_EQ(*parked(actions), (Holding{4, 5, true, {{3, 4, 4}}}));
  (void)bring(Passed{.outcome = Outcome::kStopped, .held = {{3, 4, 5}}});
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)bring(GoOrdered{2, 4});
  (void)take<Unstage>();
  EXPECT_EQ(take<Return>().what, What::kVoid);
  EXPECT_EQ(machine_.holding(), (Holding{4, 4, true, {{3, 4, 4}}}));
}

TEST_F(PassingTest, SaysAtTheBarrierWhatHasCome) {
  stand_holding();
  stage();
  (void)bring(Passed{.held = {{3, 4, 5}}});
  (void)take<Arrive>();
  const auto actions = stop(true);
  ASSERT_NE(parked(actions), nullptr);
  EXPECT_EQ(*parked(actions), (Holding{4, 5, true, {{3, 4, 5}}}));
}

TEST_F(PassingTest, DropsWhatItHoldsNoMoreWithTheNextStep) {
  stand_holding();
  stage();
  (void)bring(Passed{.held = {{2, 4, 4}, {3, 4, 5}}});
  (void)take<Arrive>();
  (void)bring(Arrived{});
  (void)take<Update>();
  (void)bring(Updated{});
  EXPECT_EQ(machine_.holding().held, (std::vector<wire::HeldCopy>{{3, 5, 5}}));
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
// Where a connection between hosts fails, nobody is dead: the scheduler hears of it from the ranks.
TEST_F(TrainerTest, SaysThatALinkedGroupHasEndedUntilItHearsWhy) {
  stand(true);
  arrive();
  EXPECT_FALSE(has<SayGroupEnded>(bring(Arrived{.outcome = Outcome::kStopped})));
  EXPECT_EQ(machine_.state(), State::kUncertain);
  for (int times = 0; times < 3; ++times) {
    now_ = *machine_.deadline();
    EXPECT_TRUE(has<SayGroupEnded>(bring(TimePassed{})));
  }
  EXPECT_TRUE(has<SayParked>(stop(true)));
  EXPECT_EQ(machine_.state(), State::kLeaving);
}

TEST_F(TrainerTest, GivesUpALinkedGroupOfWhoseEndNobodyTells) {
  stand(true);
  arrive();
  (void)bring(Arrived{.outcome = Outcome::kStopped});
  const Instant end = now_ + options_.replacement_timeout;
  while (machine_.deadline() && machine_.state() == State::kUncertain) {
    now_ = *machine_.deadline();
    (void)bring(TimePassed{});
  }
  EXPECT_EQ(take<Return>().reason.kind, Reason::Kind::kNoCause);
  EXPECT_GE(now_, end);
}

TEST_F(TrainerTest, SaysSoAlsoOfALinkedGroupThatCouldNotBeFormed) {
  (void)bring(JoinCalled{{4, 4}});
  (void)bring(GoOrdered{1, 4});
  (void)take<Return>();
  (void)bring(StepBegun{});
  (void)take<JoinGroup>();
  (void)bring(NotFormed{.why = "a link has ended", .linked = true});
  now_ = *machine_.deadline();
  EXPECT_TRUE(has<SayGroupEnded>(bring(TimePassed{})));
  // Until nobody answers that any more.
  while (machine_.deadline() && machine_.state() == State::kUncertain) {
    now_ = *machine_.deadline();
    (void)bring(TimePassed{});
  }
  EXPECT_EQ(take<Return>().reason.kind, Reason::Kind::kNotFormed);
}

TEST_F(TrainerTest, OfAGroupWithoutLinksOnlyADeathIsTheEnd) {
  stand();
  arrive();
  (void)bring(Arrived{.outcome = Outcome::kStopped});
  now_ += 2s;
  EXPECT_FALSE(has<SayGroupEnded>(bring(TimePassed{})));
}

}  // namespace holdfast::trainer
