// The agent's rules: what it starts again, what it promotes, and with which code and reason it
// ends.
#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

TEST_F(AgentTest, StartsTheSchedulerAndEveryPlace) {
  start();
  EXPECT_EQ(spawned_, 3);
  EXPECT_EQ(places_.at(kSchedulerNode).role, Role::kScheduler);
  EXPECT_EQ(places_.at("w1").attempt, 1U);
}

TEST_F(AgentTest, TheSchedulersAgentStaysThoughItHasAllPlacesOfOthersByNow) {
  start(0, 3, true, 4);
  step(LinkUp{});
  step(Received{wire::Places{{"w0", "w1", "w2", "w3"}}});
  ASSERT_TRUE(places_.contains("w3"));
  dies(at(kSchedulerNode), 137);
  dies(at(kSchedulerNode), 137);  // Its successor comes after a pause.
  for (const char* place : {"w0", "w1", "w2", "w3"}) dies(at(place), 0);
  EXPECT_FALSE(exit_.has_value());  // The agent that had two of these places may be cut off.
}

TEST_F(AgentTest, ThatContinuesAJobStartsASuccessorOfItsScheduler) {
  Options options{.job = "job", .workers = {"w0"}, .world_size = 1, .runs_scheduler = true};
  options.continues = true;
  machine_.emplace(std::move(options));
  step(Started{});
  EXPECT_EQ(places_.at(kSchedulerNode).attempt, 2U);
  EXPECT_EQ(places_.at("w0").attempt, 1U);  // A new agent counts the attempts of workers anew.
}

TEST_F(AgentTest, GivesEachSuccessorAHigherAttemptAndAnotherIncarnation) {
  start();
  const Spawn before = places_.at("w0");
  dies(at("w0"), 137);
  EXPECT_EQ(places_.at("w0").attempt, before.attempt + 1);
  EXPECT_NE(places_.at("w0").incarnation, before.incarnation);
}

TEST_F(AgentTest, ExitsWithCodeZeroWhenAllHaveEndedInGoodOrder) {
  start();
  step(LinkUp{});
  dies(at("w0"), 0);
  dies(at("w1"), 0);
  EXPECT_FALSE(exit_.has_value());
  dies(at(kSchedulerNode), 0);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 0);
}

TEST_F(AgentTest, TheSchedulersAgentStaysWhileRanksOfOtherAgentsNeedIt) {
  start(0, 3, true, 4);
  step(LinkUp{});
  dies(at(kSchedulerNode), 137);
  dies(at(kSchedulerNode), 137);  // Its successor comes after a pause.
  dies(at("w0"), 0);
  dies(at("w1"), 0);
  EXPECT_FALSE(exit_.has_value());
  step(PauseOver{pauses_.back().pause});
  EXPECT_EQ(places_.at(kSchedulerNode).attempt, 3U);
  dies(at(kSchedulerNode), 0);
  EXPECT_TRUE(exit_.has_value());
}

TEST_F(AgentTest, WhyItEndsTheJobIsToldOnALaterConnectionToo) {
  start(0, 0);
  dies(at("w0"), 3);
  step(LinkUp{});
  EXPECT_TRUE(std::holds_alternative<wire::Failed>(said_.back()));
}

TEST_F(AgentTest, GivesUpAfterMaxRestartsWithTheWorkersCodeAndAReason) {
  start(0, 1);
  dies(at("w0"), 3);
  EXPECT_FALSE(exit_.has_value());
  dies(at("w0"), 3);
  dies(at("w1"), 143);
  dies(at(kSchedulerNode), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 3);
  EXPECT_EQ(exit_->failed_node, "w0");
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kTooOften);
  EXPECT_EQ(exit_->reason.total, 1);
  EXPECT_EQ(exit_->reason.detail, "--max_restarts");
}

// A scheduler that is started again tells it of remarks that it may have had.
TEST_F(AgentTest, TellsItsUserEachRemarkOnceAndTheSchedulerHowMany) {
  start();
  step(LinkUp{});
  const auto hear = [&](std::uint64_t number) {
    step(Received{wire::Waiting{{.kind = Reason::Kind::kReplicas}, number}});
  };
  for (const std::uint64_t number : {1U, 2U, 1U, 2U}) hear(number);
  EXPECT_EQ(told_.size(), 2U);
  hear(0);
  EXPECT_EQ(told_.size(), 3U) << "this is no remark, and is always told";
  step(LinkDown{});
  step(LinkUp{});
  const auto* state = std::get_if<wire::AgentState>(&said_.back());
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(state->remarks, 2U);
  hear(3);
  EXPECT_EQ(told_.size(), 4U);
}

TEST_F(AgentTest, SaysHowTheLastOneDiedAlsoWhereThatIsKnownOnlyLater) {
  start(0, 0);
  dies_and_is_explained(at("w0"), 139);
  dies(at("w1"), 143);
  dies(at(kSchedulerNode), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 139);
  EXPECT_EQ(exit_->reason.node_id, "w0");
  EXPECT_EQ(exit_->reason.ending, ending(139));
  EXPECT_EQ(exit_->reason.version, 1U);  // It failed once.
}

TEST_F(AgentTest, TheSameExceptionAtTheSameStepEndsTheJobAtTheSecondTime) {
  for (const Version version : {kNoVersion, Version{0}, Version{6}}) {
    exit_.reset();
    start(0, 100);
    raises(at("w1"), "ValueError: no data", version);
    EXPECT_EQ(places_.at("w1").attempt, 2U);
    raises(at("w1"), "ValueError: no data", version);
    dies(at("w0"), 143);
    dies(at(kSchedulerNode), 143);
    ASSERT_TRUE(exit_.has_value());
    EXPECT_EQ(exit_->code, 1);
    EXPECT_EQ(exit_->failed_node, "w1");
    EXPECT_EQ(exit_->reason, (Reason{.kind = Reason::Kind::kTwice,
                                     .ending = ending(1),
                                     .version = version,
                                     .node_id = "w1",
                                     .detail = "ValueError: no data"}));
  }
}

TEST_F(AgentTest, WhatHoldfastRefusesEndsTheJobAtOnce) {
  for (const bool is_known_later : {false, true}) {
    exit_.reset();
    start(0, 100);
    const Process process = at("w1");
    if (is_known_later) step(Died{process, {}, 5});
    step(Died{process, ending(1), 5, "UserError: no", 6, {}, true});
    for (const char* node : {"w0", "w1", kSchedulerNode}) dies(at(node), 143);
    ASSERT_TRUE(exit_.has_value());
    EXPECT_EQ(exit_->code, 1);
    EXPECT_EQ(exit_->failed_node, "w1");
    EXPECT_EQ(exit_->reason.kind, Reason::Kind::kProcessEnded);
    EXPECT_EQ(exit_->reason.detail, "UserError: no");
  }
}

// At first only the deaths are known, and later their causes.
TEST_F(AgentTest, TheSameExceptionCountsWhereItIsKnownOnlyLater) {
  start(0, 100);
  for (int i = 0; i < 2; ++i) {
    const Process process = at("w1");
    step(Died{process, {}, 5});
    step(Died{process, ending(1), 5, "ValueError: no data", 6});
  }
  for (const char* node : {"w0", "w1", kSchedulerNode}) dies(at(node), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kTwice);
  EXPECT_EQ(exit_->reason.version, 6U);
}

TEST_F(AgentTest, AnotherExceptionOrStepOrRankOrASignalIsAnotherFault) {
  start(0, 100);
  raises(at("w0"), "ValueError: no data", 6);
  raises(at("w1"), "ValueError: no data", 6);
  raises(at("w0"), "OSError: no file", 6);
  raises(at("w0"), "OSError: no file", 7);
  for (int i = 0; i < 5; ++i) dies(at("w1"), 137);
  for (int i = 0; i < 5; ++i) dies(at("w1"), 3);  // The program calls sys.exit(3).
  EXPECT_TRUE(killed_.empty());
  EXPECT_EQ(places_.at("w0").attempt, 4U);
}

TEST_F(AgentTest, TheUserHearsOfEveryEndHowItCame) {
  start(1, 100);
  dies_and_is_explained(at("w0"), 139);
  raises(at("w1"), "ValueError: no data", 6);
  ASSERT_EQ(told_.size(), 2U);
  EXPECT_EQ(told_[0].ending, ending(139));
  EXPECT_EQ(told_[1], (Reason{.kind = Reason::Kind::kProcessEnded,
                              .ending = ending(1),
                              .node_id = "w1",
                              .detail = "ValueError: no data"}));
  EXPECT_EQ(places_.at("w1").predecessor.ending, ending(1));
  EXPECT_EQ(places_.at("w1").predecessor.error, "ValueError: no data");
}

// The lifeline told of each death before an exit code was known: the process was training.
TEST_F(AgentTest, AJobWhoseWorkerEndsWithCodeZeroEachTimeHasFailed) {
  start(0, 0);
  dies_and_is_explained(at("w1"), 0);
  dies(at("w0"), 143);
  dies(at(kSchedulerNode), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 1);
  EXPECT_EQ(exit_->failed_node, "w1");
  EXPECT_EQ(exit_->reason.ending, ending(0));
}

TEST_F(AgentTest, AStepThatWasMadeCountsRestartsAnew) {
  start(0, 1);
  dies(at("w0"), 137);
  step(Received{wire::JobProgress{2, 5, 0, 1}});
  dies(at("w0"), 137);
  EXPECT_EQ(places_.at("w0").attempt, 3U);
  EXPECT_TRUE(killed_.empty());
}

TEST_F(AgentTest, PromotesTheSpareThatWaitsLongestAndStartsAnother) {
  start(2);
  const Process oldest = spares_[0].process;
  dies(at("w1"), 137);
  ASSERT_EQ(promoted_.size(), 1U);
  EXPECT_EQ(promoted_[0].process, oldest);
  EXPECT_EQ(promoted_[0].node_id, "w1");
  EXPECT_EQ(promoted_[0].attempt, 2U);
  step(PauseOver{pauses_.back().pause});
  EXPECT_EQ(spares_.size(), 3U);
}

TEST_F(AgentTest, ASpareThatIsReadyIsPromotedBeforeAnOlderOne) {
  start(2, 5);
  step(SpareReady{spares_[1].process});
  dies(at("w1"), 137);
  dies(at("w0"), 137);
  ASSERT_EQ(promoted_.size(), 2U);
  EXPECT_EQ(promoted_[0].process, spares_[1].process);
  EXPECT_EQ(promoted_[1].process, spares_[0].process);
}

TEST_F(AgentTest, WhichSparesItHasIsToldWheneverThatChanges) {
  const auto told = [this] { return std::get<wire::AgentState>(said_.back()).spares; };
  using Told = std::vector<wire::SpareState>;
  start(1, 5);
  EXPECT_TRUE(said_.empty());  // There is no link yet.
  step(LinkUp{});
  EXPECT_EQ(told(), (Told{{"", false}}));
  step(SpareReady{spares_[0].process});
  EXPECT_EQ(told(), (Told{{"", true}}));
  dies(at("w1"), 137);
  EXPECT_EQ(told(), Told{});
  step(PauseOver{pauses_.back().pause});
  EXPECT_EQ(told(), (Told{{"", false}}));
  step(SpareReady{promoted_[0].process});  // Too late: the spare has a place already.
  EXPECT_EQ(told(), (Told{{"", false}}));
  dies(spares_[1].process, 137);
  dies(spares_[2].process, 137);
  dies(spares_[3].process, 137);
  EXPECT_EQ(told(), (Told{{"", false}}));
  step(SpawnFailed{spares_[4].process, "no memory"});
  EXPECT_EQ(told(), Told{});
}

TEST_F(AgentTest, AnotherSpareIsStartedWhenTheJobHasMadeAStepSince) {
  start(1, 5);
  step(Received{wire::JobProgress{1, 5, 0, 0}});
  dies(at("w0"), 137);
  EXPECT_EQ(spares_.size(), 1U);
  step(Received{wire::JobProgress{1, 6, 0, 0}});  // Progress from before the death, told late.
  EXPECT_EQ(spares_.size(), 1U);
  step(Received{wire::JobProgress{2, 7, 0, 1}});
  EXPECT_EQ(spares_.size(), 2U);
  step(Received{wire::JobProgress{2, 8, 0, 1}});
  step(PauseOver{pauses_.back().pause});
  EXPECT_EQ(spares_.size(), 2U);
}

TEST_F(AgentTest, AnotherSpareIsStartedInTheEndWhereNoStepIsMade) {
  start(1, 5);
  dies(at("w0"), 137);
  dies(at("w1"), 137);  // No spare is left, so a new process starts.
  EXPECT_EQ(promoted_.size(), 1U);
  EXPECT_EQ(places_.at("w1").attempt, 2U);
  EXPECT_EQ(spares_.size(), 1U);
  step(PauseOver{pauses_.back().pause});
  EXPECT_EQ(spares_.size(), 2U);
}

TEST_F(AgentTest, NoOtherSpareIsStartedForAJobThatEnds) {
  for (const bool well : {true, false}) {
    spares_.clear();
    start(1, 5);
    dies(at("w0"), 137);
    if (well) {
      step(Received{wire::JobEnded{true, {}}});
    } else {
      step(Interrupted{15});
    }
    step(Received{wire::JobProgress{2, 7, 0, 1}});
    step(PauseOver{pauses_.back().pause});
    EXPECT_EQ(spares_.size(), 1U);
  }
}

TEST_F(AgentTest, ABoundSpareTakesItsOwnPlaceOnly) {
  start(kBound, 5);
  ASSERT_EQ(spares_.size(), 2U);
  EXPECT_EQ(spares_[0].node_id, "w0");
  EXPECT_EQ(spares_[1].node_id, "w1");
  dies(at("w1"), 137);
  ASSERT_EQ(promoted_.size(), 1U);
  EXPECT_EQ(promoted_[0].process, spares_[1].process);
  EXPECT_EQ(promoted_[0].node_id, "w1");
  dies(promoted_[0].process, 137);  // No spare of w1 is left, so a new process starts.
  EXPECT_EQ(promoted_.size(), 1U);
  EXPECT_EQ(places_.at("w1").attempt, 3U);
}

TEST_F(AgentTest, AnotherBoundSpareIsOfTheSamePlace) {
  start(kBound, 5);
  step(Received{wire::JobProgress{1, 5, 0, 0}});
  dies(at("w1"), 137);
  EXPECT_EQ(spares_.size(), 2U);
  step(Received{wire::JobProgress{2, 6, 0, 1}});
  ASSERT_EQ(spares_.size(), 3U);
  EXPECT_EQ(spares_[2].node_id, "w1");
  dies(spares_[0].process, 1);
  ASSERT_EQ(spares_.size(), 4U);
  EXPECT_EQ(spares_[3].node_id, "w0");
  step(SpawnFailed{spares_[3].process, "no memory"});
  step(PauseOver{pauses_.back().pause});
  ASSERT_EQ(spares_.size(), 5U);
  EXPECT_EQ(spares_[4].node_id, "w0");
}

TEST_F(AgentTest, ABoundSpareEndsWithItsPlace) {
  start(kBound, 5);
  dies(at("w0"), 0);
  ASSERT_EQ(killed_.size(), 1U);
  EXPECT_EQ(killed_[0].process, spares_[0].process);
  dies(spares_[0].process, 137);
  EXPECT_EQ(spares_.size(), 2U);
}

TEST_F(AgentTest, NeverPromotesADeadSpare) {
  start(1, 5);
  const Process dead = spares_[0].process;
  dies(dead, 1);
  dies(at("w0"), 137);
  ASSERT_EQ(promoted_.size(), 1U);
  EXPECT_NE(promoted_[0].process, dead);
}

TEST_F(AgentTest, StartsNoFurtherSpareAfterTooManyHaveDied) {
  start(1, 1);
  dies(spares_.back().process, 1);
  dies(spares_.back().process, 1);
  EXPECT_EQ(spares_.size(), 2U);
  EXPECT_FALSE(exit_.has_value());
}

TEST_F(AgentTest, NeverPromotesASpareToTheScheduler) {
  start(1);
  dies(at(kSchedulerNode), 137);
  EXPECT_TRUE(promoted_.empty());
  EXPECT_EQ(places_.at(kSchedulerNode).attempt, 2U);
}

// Otherwise the steps in which the workers save their state would be disturbed.
TEST_F(AgentTest, AnInterruptIsToldOnceTheWorkersHaveEnded) {
  start();
  step(LinkUp{});
  said_.clear();
  step(Interrupted{15});
  EXPECT_EQ(killed_.size(), 2U) << "the scheduler goes on";
  dies(at("w0"), 0);
  step(LinkUp{});
  for (const auto& message : said_) EXPECT_FALSE(std::holds_alternative<wire::Failed>(message));
  said_.clear();
  dies(at("w1"), 143);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(std::get<wire::Failed>(said_[0]).reason.kind, Reason::Kind::kInterrupted);
  EXPECT_EQ(killed_.back().process, at(kSchedulerNode));
  EXPECT_TRUE(killed_.back().gently);
  dies(at(kSchedulerNode), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 143);
}

TEST_F(AgentTest, AnInterruptEndsAllGentlyAndThenAtOnce) {
  start();
  step(Interrupted{2});
  ASSERT_EQ(killed_.size(), 2U);
  EXPECT_TRUE(killed_[0].gently);
  killed_.clear();
  dies(at("w0"), 130);
  step(GraceOver{});
  ASSERT_EQ(killed_.size(), 2U);
  for (const auto& kill : killed_) EXPECT_EQ(kill.gently, kill.process == at(kSchedulerNode));
  killed_.clear();
  dies(at("w1"), 137);
  step(GraceOver{});
  ASSERT_EQ(killed_.size(), 1U);
  EXPECT_FALSE(killed_[0].gently);
  dies(at(kSchedulerNode), 137);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 130);
}

TEST_F(AgentTest, TheDeathIsToldAtOnceAndTheExitCodeLater) {
  start();
  step(LinkUp{});
  said_.clear();
  const Process process = at("w0");
  step(Died{process, {}, 5});
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_EQ(std::get<wire::AgentState>(said_[0]).places[0].attempt, 2U);
  step(Died{process, ending(139), 5});
  ASSERT_EQ(said_.size(), 2U);
  EXPECT_EQ(std::get<wire::AgentState>(said_[1]).places[0].ending, ending(139));
  EXPECT_EQ(places_.at("w0").attempt, 2U);
}

TEST_F(AgentTest, TellsAllItsPlacesWhenItIsConnectedAgain) {
  start();
  dies(at("w0"), 137);
  step(LinkUp{});
  ASSERT_EQ(said_.size(), 1U);
  const auto& state = std::get<wire::AgentState>(said_[0]);
  ASSERT_EQ(state.places.size(), 2U);
  EXPECT_EQ(state.places[0].attempt, 2U);
  EXPECT_TRUE(state.places[1].alive);
}

TEST_F(AgentTest, EvictsOnlyTheProcessThatIsMeant) {
  start();
  step(Received{wire::Evict{"w0", places_.at("w0").incarnation + 1}});
  EXPECT_TRUE(killed_.empty());
  step(Received{wire::Evict{"w0", places_.at("w0").incarnation}});
  ASSERT_EQ(killed_.size(), 1U);
  EXPECT_EQ(killed_[0].process, at("w0"));
  EXPECT_FALSE(killed_[0].gently);
  // The reason is its silence, not the signal that killed it.
  step(LinkUp{});
  dies(at("w0"), 137);
  const auto& state = std::get<wire::AgentState>(said_.back());
  EXPECT_EQ(state.places[0].ending.kind, Ending::Kind::kWasSilent);
}

TEST_F(AgentTest, ASchedulerThatNeverServedIsTheProgramsFault) {
  start();
  dies(at(kSchedulerNode), 0);
  step(GraceOver{});
  dies(at("w0"), 143);
  dies(at("w1"), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kSchedulerLeft);
}

TEST_F(AgentTest, AProgramThatCanNotBeStartedIsToldAtOnce) {
  start();
  step(SpawnFailed{at("w0"), "no such file: train"});
  dies(at("w1"), 143);
  dies(at(kSchedulerNode), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 127);
  EXPECT_EQ(exit_->reason.detail, "no such file: train");
}

TEST_F(AgentTest, AReplacementThatCanNotBeStartedIsTriedAgainAndThenEndsTheJob) {
  start();
  dies(at("w0"), 137);
  Duration last{};
  for (std::int32_t i = 1; i < kSpawnTries; ++i) {
    const std::uint64_t attempt = places_.at("w0").attempt;
    step(SpawnFailed{at("w0"), "no memory"});
    ASSERT_EQ(pauses_.size(), static_cast<std::size_t>(i));
    EXPECT_GT(pauses_.back().how_long, last);
    last = pauses_.back().how_long;
    EXPECT_EQ(places_.at("w0").attempt, attempt);
    step(PauseOver{pauses_.back().pause});
    EXPECT_EQ(places_.at("w0").attempt, attempt + 1);
  }
  EXPECT_TRUE(killed_.empty());
  step(SpawnFailed{at("w0"), "no memory"});
  dies(at("w1"), 143);
  dies(at(kSchedulerNode), 143);
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->code, 127);
  EXPECT_EQ(exit_->reason.detail, "no memory");
  EXPECT_EQ(exit_->reason.count, 5);
}

// Seed 1001598886 of the swarm: the agent sat out its grace period, or met an unexpected event.
TEST_F(AgentTest, AnAgentThatRunsNothingEndsAsSoonAsTheJobHasFailed) {
  start(0, 100, /*scheduler=*/false);
  step(LinkUp{});
  for (const char* node : {"w0", "w1"}) {
    dies(at(node), 137);
    step(SpawnFailed{at(node), "no memory"});
  }
  EXPECT_FALSE(exit_.has_value());
  step(Received{wire::JobEnded{false, {.kind = Reason::Kind::kNotFormedInTime}}});
  ASSERT_TRUE(exit_.has_value());
  EXPECT_EQ(exit_->reason.kind, Reason::Kind::kNotFormedInTime);
}

TEST_F(AgentTest, ASpareThatCanNotBeStartedIsTriedAgain) {
  start(1);
  step(SpawnFailed{spares_.back().process, "no memory"});
  ASSERT_EQ(pauses_.size(), 1U);
  step(PauseOver{pauses_.back().pause});
  EXPECT_EQ(spares_.size(), 2U);
}

TEST_F(AgentTest, ASchedulerIsReplacedAtOnceAndAfterPausesIfItFailsAgain) {
  start(0, 100);
  dies(at(kSchedulerNode), 1);
  EXPECT_EQ(places_.at(kSchedulerNode).attempt, 2U);
  for (int i = 0; i < 10; ++i) {
    dies(at(kSchedulerNode), 1);
    ASSERT_EQ(pauses_.size(), static_cast<std::size_t>(i + 1));
    step(PauseOver{pauses_.back().pause});
  }
  EXPECT_EQ(places_.at(kSchedulerNode).attempt, 12U);
  EXPECT_EQ(pauses_.back().how_long, std::chrono::seconds(2));
  step(Received{wire::JobProgress{2, 5, 0, 1}});
  dies(at(kSchedulerNode), 1);
  EXPECT_EQ(places_.at(kSchedulerNode).attempt, 13U);
}

TEST_F(AgentTest, EndsAProcessThatIsStoppedInSeveralLooksOnEnd) {
  start();
  const Process process = at("w0");
  for (int i = 1; i < kStoppedLooks; ++i) look({process});
  look({});
  for (int i = 1; i < kStoppedLooks; ++i) look({process});
  EXPECT_TRUE(killed_.empty());
  look({process});
  ASSERT_EQ(killed_.size(), 1U);
  EXPECT_EQ(killed_[0].process, process);
  EXPECT_FALSE(killed_[0].gently);
  look({process});
  EXPECT_EQ(killed_.size(), 1U);
  step(LinkUp{});
  said_.clear();
  dies(process, 137);
  EXPECT_EQ(std::get<wire::AgentState>(said_.back()).places[0].ending.kind,
            Ending::Kind::kWasStopped);
}

TEST_F(AgentTest, WhatStoppedTheAgentAsWellDoesNotCount) {
  start();
  for (int i = 0; i < 10 * kStoppedLooks; ++i) look({at("w0"), at("w1")}, i % 3 != 0);
  EXPECT_TRUE(killed_.empty());
}

// The scheduler's host may be lost for good.
TEST_F(AgentTest, EndsIfNoSchedulerIsInReachForTooLong) {
  start(0, 3, false, 4);
  step(LinkUp{});
  step(LinkDown{});
  step(OutOfReach{"no scheduler"});
  EXPECT_EQ(killed_.size(), 2U);
  dies(at("w0"), 143);
  dies(at("w1"), 143);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->reason, (Reason{.kind = Reason::Kind::kOutOfReach, .detail = "no scheduler"}));
}

TEST_F(AgentTest, WaitsForTheSchedulerThatItRunsItself) {
  start();
  step(OutOfReach{"no scheduler"});
  EXPECT_TRUE(killed_.empty());
}

TEST_F(AgentTest, LeavesTheAddressesOfAllToItsWorkers) {
  start();
  step(LinkUp{});
  std::vector<PeerPlace> places = {{0, "a:1", 0}, {1, "b:1", 1}, {1, "b:2", 1}};
  const AddressBook before(places);
  places[2].endpoint = "b:3";
  const AddressBook after(places);
  step(Received{after.since(before)});  // This changes a book that the agent does not have.
  EXPECT_TRUE(left_.empty());
  EXPECT_EQ(said_.back(), wire::Message(wire::AskAddresses{}));
  step(Received{before.whole()});
  step(Received{after.since(before)});
  ASSERT_EQ(left_.size(), 2U);
  EXPECT_EQ(left_[0], before.whole());
  EXPECT_EQ(left_[1], after.whole());
}

}  // namespace
}  // namespace holdfast::agent
