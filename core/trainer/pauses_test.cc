// A rank of a job that is paused waits before the commit barrier.
#include <gtest/gtest.h>

#include "core/trainer/machine_for_test.h"

namespace holdfast::trainer {
namespace {

class PausesTest : public TrainerTest {
 protected:
  // What the rank is told in generation 1 while it trains.
  Actions hear(std::uint64_t pauses, bool is_first = false) {
    return assign({.generation = 1, .stage = wire::Stage::kRunning, .version = 4, .pauses = pauses},
                  is_first);
  }
  // The program ends its step, and the rank has staged it. Returns what it does then.
  Actions stage() {
    (void)bring(StepEnded{});
    (void)take<AwaitSums>();
    (void)bring(SumsDone{});
    (void)take<Stage>();
    return bring(Staged{});
  }
  void hold() {
    stand();
    (void)hear(1);
    EXPECT_EQ(*said<wire::Pause>(stage()), (wire::Pause{true, 1, 4}));
    (void)take<Hold>();
    EXPECT_EQ(machine_->state(), State::kHeld);
    EXPECT_TRUE(work_.empty());
  }
};

TEST_F(PausesTest, ItWaitsBeforeTheBarrierUntilTheJobGoesOn) {
  hold();
  EXPECT_EQ(machine_->holding().version, 4U);
  (void)hear(2);
  (void)take<Arrive>();
  (void)bring(Arrived{});
  (void)take<Update>();
  (void)bring(Updated{});
  EXPECT_EQ(take<Return>().what, What::kCommitted);
}

TEST_F(PausesTest, WhoHasArrivedEndsThisStepAndWaitsInTheNext) {
  stand();
  arrive();
  (void)hear(1);
  (void)bring(Arrived{});
  (void)take<Update>();
  (void)bring(Updated{});
  EXPECT_EQ(take<Return>().what, What::kCommitted);
  (void)bring(StepBegun{});
  EXPECT_EQ(take<Return>().what, What::kBegun) << "its own part of a step harms nobody";
  EXPECT_EQ(*said<wire::Pause>(stage()), (wire::Pause{true, 1, 5}));
}

// Else users would see an older step for as long as the pause lasts.
TEST_F(PausesTest, ItTellsOfItsNewestStep) {
  stand();
  for (const Version version : {5U, 6U, 7U}) {
    arrive();
    if (version == 7U) {
      EXPECT_EQ(said<wire::Progress>(hear(1))->version, 6U);
    }
    (void)bring(Arrived{});
    (void)take<Update>();
    EXPECT_EQ(said<wire::Progress>(bring(Updated{})) == nullptr, version == 6U);
    (void)take<Return>();
    (void)bring(StepBegun{});
    (void)take<Return>();
  }
  EXPECT_EQ(said<wire::Progress>(hear(3)), nullptr);
}

TEST_F(PausesTest, ASchedulerThatMayNotKnowIsToldAgain) {
  hold();
  EXPECT_EQ(said<wire::Pause>(hear(1)), nullptr);
  EXPECT_EQ(*said<wire::Pause>(hear(1, true)), (wire::Pause{true, 1, 4})) << "another connection";
  EXPECT_EQ(*said<wire::Pause>(hear(3)), (wire::Pause{true, 3, 4})) << "it has missed an order";
  EXPECT_EQ(machine_->state(), State::kHeld);
}

TEST_F(PausesTest, AFaultEndsTheWaitAndItWaitsAgainAfterwards) {
  hold();
  const auto stopped = stop(true);
  ASSERT_NE(said<wire::Report>(stopped), nullptr);
  EXPECT_EQ(said<wire::Report>(stopped)->version, 4U);
  EXPECT_EQ(said<wire::Report>(stopped)->staged, 5U);
  (void)take<LeaveGroup>();
  (void)bring(LeftGroup{});
  (void)assign({.generation = 2, .stage = wire::Stage::kRunning, .version = 4, .pauses = 1});
  (void)take<Unstage>();
  EXPECT_EQ(take<Return>().what, What::kVoid);
  begin();
  EXPECT_NE(said<wire::Pause>(stage()), nullptr);
  (void)take<Hold>();
}

TEST_F(PausesTest, WhoWasStoppedAlreadyDoesNotWait) {
  stand();
  (void)hear(1);
  (void)bring(StepEnded{});
  (void)take<AwaitSums>();
  (void)bring(SumsDone{});
  (void)take<Stage>();
  (void)stop(true);  // Nobody would stop it again.
  (void)bring(Staged{});
  (void)take<Arrive>();
}

TEST_F(PausesTest, AReleaseDoesNotOvertakeAStop) {
  hold();
  EXPECT_TRUE(has<StopGroup>(assign({.generation = 2, .pauses = 2})));
  EXPECT_TRUE(work_.empty());
  EXPECT_NE(said<wire::Report>(bring(GroupStopped{true})), nullptr);
  (void)take<LeaveGroup>();
}

TEST_F(PausesTest, TheJobsEndAndTheLossOfTheSchedulerEndTheWait) {
  hold();
  (void)bring(JobOver{false, {.kind = Reason::Kind::kInterrupted}});
  EXPECT_EQ(take<Return>().reason.kind, Reason::Kind::kInterrupted);
  machine_.emplace(options_);
  hold();
  (void)bring(OutOfReach{{.kind = Reason::Kind::kOutOfReach}});
  EXPECT_EQ(take<Return>().reason.kind, Reason::Kind::kOutOfReach) << "nobody would release it";
}

TEST_F(PausesTest, WithoutABarrierItWaitsBeforeTheUpdate) {
  options_.protect = false;
  machine_.emplace(options_);
  hold();
  (void)hear(2);
  (void)take<Update>();
}

}  // namespace
}  // namespace holdfast::trainer
