// The scheduler's rules about ranks, places and ends. What it does after faults is in
// tests/transcripts and in the simulation.
#include "core/controller/machine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "core/controller/machine_for_test.h"

namespace holdfast::controller {

using wire::Ending;
using wire::Reason;
using wire::Stage;

namespace {

TEST_F(ControllerTest, GivesRanksInNaturalOrderOfNodeIds) {
  come(1, who("worker-10", 1));
  come(2, who("worker-9", 2));
  come(3, who("worker-1", 3));
  EXPECT_EQ(rank(3), 0);
  EXPECT_EQ(rank(2), 1);
  EXPECT_EQ(rank(1), 2);
}

TEST_F(ControllerTest, KeepsTheRanksOfOneHostTogether) {
  come(1, who("a", 1, 0, "host-2"));
  come(2, who("b", 2, 0, "host-1"));
  come(3, who("c", 3, 0, "host-1"));
  EXPECT_EQ(rank(2), 0);
  EXPECT_EQ(rank(3), 1);
  EXPECT_EQ(rank(1), 2);
}

TEST_F(ControllerTest, TakesNumbersAsRanks) {
  come(1, who("2", 1, 0, "host-1"));
  come(2, who("0", 2, 0, "host-2"));
  come(3, who("1", 3, 0, "host-3"));
  EXPECT_EQ(rank(1), 2);
  EXPECT_EQ(rank(2), 0);
  EXPECT_EQ(rank(3), 1);
}

TEST_F(ControllerTest, NumbersWithAGapAreNamesLikeOthers) {
  come(1, who("7", 1));
  come(2, who("10", 2));
  come(3, who("0", 3));
  EXPECT_EQ(rank(3), 0);
  EXPECT_EQ(rank(1), 1);
  EXPECT_EQ(rank(2), 2);
}

TEST_F(ControllerTest, NobodyHasARankBeforeAllHaveCome) {
  come(1, who("a", 1));
  come(2, who("b", 2));
  EXPECT_EQ(rank(1), kNoRank);
}

// Thousands of processes may come within a second.
TEST_F(ControllerTest, TellsHowManyAreHereAtMostOnceASecond) {
  come(1, who("a", 1));
  EXPECT_EQ(last<wire::Waiting>(1)->reason,
            (Reason{.kind = Reason::Kind::kAssembling, .count = 1, .total = 3}));
  come(2, who("b", 2));
  EXPECT_EQ(last<wire::Waiting>(2), nullptr);
  pass(now_ + std::chrono::seconds(1));
  for (const Link link : std::initializer_list<Link>{1, 2}) {
    ASSERT_NE(last<wire::Waiting>(link), nullptr);
    EXPECT_EQ(last<wire::Waiting>(link)->reason,
              (Reason{.kind = Reason::Kind::kAssembling, .count = 2, .total = 3}));
  }
}

TEST_F(ControllerTest, RefusesOneWorkerTooMany) {
  all_train();
  come(4, who("w4", 40));
  EXPECT_EQ(refusal(4).kind, Reason::Kind::kPlacesTaken);
}

TEST_F(ControllerTest, RefusesTheSecondProcessOfANodeBeforeTheStart) {
  come(1, who("a", 1));
  come(2, who("a", 2));
  EXPECT_EQ(refusal(2).kind, Reason::Kind::kNodeTaken);
}

TEST_F(ControllerTest, RefusesASecondNameOfOneRank) {
  come(1, who("01", 1));
  come(2, who("1", 2));
  EXPECT_EQ(refusal(2), (Reason{.kind = Reason::Kind::kNodeTaken, .node_id = "1", .other = "01"}));
  come(3, who("001", 3));
  EXPECT_EQ(refusal(3).other, "01");
  come(4, who("10", 4));
  come(5, who("w1", 5));
  EXPECT_EQ(rank(1), 0);
  EXPECT_EQ(rank(4), 1);
  EXPECT_EQ(rank(5), 2);
}

TEST_F(ControllerTest, RefusesTheProcessOfAnotherJob) {
  auto m = who("a", 1);
  m.job = "other";
  come(1, m);
  EXPECT_EQ(refusal(1),
            (Reason{.kind = Reason::Kind::kOtherJob, .other = "other", .detail = "job"}));
}

TEST_F(ControllerTest, RefusesAnotherProtocolByItsNumber) {
  auto m = who("a", 1);
  m.protocol = 99;
  come(1, m);
  EXPECT_EQ(refusal(1).kind, Reason::Kind::kOtherProtocol);
  EXPECT_EQ(refusal(1).count, 99);
}

TEST_F(ControllerTest, TooFewByTheTimeoutEndsTheJobAndNamesWhoIsHere) {
  come(1, who("a", 1));
  now_ = options_.topology_timeout;
  step(TimePassed{});
  ASSERT_TRUE(end_.has_value());
  EXPECT_FALSE(end_->success);
  EXPECT_EQ(end_->reason, (Reason{.kind = Reason::Kind::kTooFewCame,
                                  .count = 1,
                                  .total = 3,
                                  .awaited = {{.node_id = "a"}}}));
  EXPECT_NE(last<wire::JobEnded>(1), nullptr);
}

TEST_F(ControllerTest, ALongWaitForTheLastCostsTheFirstNothing) {
  come(1, who("w1", 10));
  come(2, who("w2", 20));
  for (int second = 10; second <= 50; second += 10) {
    now_ = std::chrono::seconds(second);
    step(Received{1, wire::Heartbeat{}});
    step(Received{2, wire::Heartbeat{}});
  }
  come(3, who("w3", 30));
  pass(now_ + options_.lease / 2);
  for (const auto& member : machine_->members()) EXPECT_EQ(member.state, SeatState::kHeld);
}

TEST_F(ControllerTest, ANewerAttemptTakesThePlaceAtOnce) {
  all_train(1);
  const Generation before = machine_->generation();
  give("w2", 21, 2);
  come(4, who("w2", 21, 2));
  EXPECT_EQ(rank(4), 1);
  EXPECT_EQ(machine_->generation(), before + 1);
  EXPECT_EQ(machine_->members()[1].seat.incarnation, 21U);
}

// All workers and the scheduler may die together: then every process that comes is new.
TEST_F(ControllerTest, AfterItsOwnEndItStillKnowsWhomASuccessorReplaces) {
  all_train(1);
  machine_.emplace(options_, machine_->formation());
  step(Started{});
  give("w1", 11, 2);
  come(11, who("w1", 11, 2));
  ASSERT_EQ(faults_.size(), 1U);
  EXPECT_EQ(faults_[0], (Reason{.kind = Reason::Kind::kRankLost, .rank = 0, .pid = 1}));
  come(12, who("w2", 21, 1));
  ASSERT_NE(last<wire::Waiting>(12), nullptr);
  EXPECT_EQ(last<wire::Waiting>(12)->reason.kind, Reason::Kind::kLeased);
  EXPECT_EQ(last<wire::Waiting>(12)->reason.count, 30);
}

TEST_F(ControllerTest, AnOlderAttemptDisplacesNobody) {
  all_train(2);
  come(4, who("w2", 21, 1));
  EXPECT_EQ(rank(4), kNoRank);
  EXPECT_EQ(machine_->members()[1].seat.incarnation, 20U);
}

TEST_F(ControllerTest, WithoutAnAgentAPlaceIsGivenOnlyWhenItsLeaseHasRunOut) {
  all_train();
  come(4, who("w2", 21));
  EXPECT_EQ(rank(4), kNoRank);
  pass(options_.lease - std::chrono::seconds(1));
  step(Received{1, wire::Heartbeat{}});
  step(Received{3, wire::Heartbeat{}});
  pass(options_.lease);
  EXPECT_EQ(rank(4), 1);
}

// The scheduler's host may give up the connection to a lost host only after half a lease, as here.
TEST_F(ControllerTest, ALeaseRunsFromTheLastWordThoughTheConnectionEndsLater) {
  all_train();
  pass(options_.lease / 2);
  step(Closed{2});
  step(Received{1, wire::Heartbeat{}});
  step(Received{3, wire::Heartbeat{}});
  pass(options_.lease);
  ASSERT_EQ(machine_->stage(), Stage::kStopping);
  EXPECT_EQ(faults_.back().ending.kind, wire::Ending::Kind::kNotHeard);
}

TEST_F(ControllerTest, AProvenDeathGivesThePlaceAtOnce) {
  all_train();
  come(4, who("w2", 21));
  step(ProvenDead{"w2", 20});
  EXPECT_EQ(rank(4), 1);
}

// The agent may have left without being heard: then no successor comes that could be told of the
// end.
TEST_F(ControllerTest, TheSuccessorOfARankThatHasEndedIsAwaitedAsLongAsAnyOther) {
  all_train(1);
  for (Link link = 1; link <= 3; ++link) {
    step(Received{link, wire::Finished{machine_->generation(), 9}});
  }
  const wire::PlaceState dead{"w2", 20, 1, false, {Ending::Kind::kSignalled, 9}, 5};
  const wire::PlaceState well{"w1", 10, 1, false, {Ending::Kind::kExited, 0}, 5};
  const wire::PlaceState too{"w3", 30, 1, false, {Ending::Kind::kExited, 0}, 5};
  step(Received{9, wire::AgentState{"job", "agent", "host", {well, dead, too}}});
  EXPECT_EQ(state("w2"), SeatState::kOrphaned);
  pass(options_.replacement_timeout - std::chrono::seconds(1));
  EXPECT_FALSE(end_.has_value());
  pass(options_.replacement_timeout);
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(end_->success);
}

// Seed 2009081527 of the swarm: the job's end waited for a successor that its agent had seen leave.
TEST_F(ControllerTest, AnOrphanWhoseSuccessorHasLeftWithoutAWordIsNotAwaited) {
  all_train(1);
  for (Link link = 1; link <= 3; ++link) {
    step(Received{link, wire::Finished{machine_->generation(), 9}});
  }
  const wire::PlaceState well{"w1", 10, 1, false, {Ending::Kind::kExited, 0}, 5};
  const wire::PlaceState too{"w3", 30, 1, false, {Ending::Kind::kExited, 0}, 5};
  const wire::PlaceState dead{"w2", 20, 1, false, {Ending::Kind::kSignalled, 9}, 5};
  step(Received{9, wire::AgentState{"job", "agent", "host", {well, dead, too}}});
  EXPECT_FALSE(end_.has_value());
  const wire::PlaceState silent{"w2", 21, 2, false, {Ending::Kind::kExited, 0}, 6};
  step(Received{9, wire::AgentState{"job", "agent", "host", {well, silent, too}}});
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(end_->success);
}

TEST_F(ControllerTest, NobodyTakesThePlaceOfARankThatHasEndedItsTraining) {
  all_train();
  step(Received{2, wire::Finished{machine_->generation(), 9}});
  come(4, who("w2", 21));
  pass(options_.lease - std::chrono::seconds(1));
  step(Received{1, wire::Heartbeat{}});
  step(Received{3, wire::Heartbeat{}});
  pass(options_.lease);
  come(5, who("w2", 22));
  EXPECT_EQ(rank(4), kNoRank);
  EXPECT_EQ(rank(5), kNoRank);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  EXPECT_TRUE(machine_->members()[1].seat.finished);
}

// An evaluation may take long. This holds after a restart of the scheduler as well.
TEST_F(ControllerTest, ARankThatLivesAndHasJoinedMayTakeItsTime) {
  for (const bool restarted : {false, true}) {
    machine_.emplace(options_, std::nullopt);
    step(Started{});
    all_train();
    if (restarted) {
      machine_.emplace(options_, machine_->formation());
      step(Started{});
      for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link));
    }
    step(ProvenDead{"w2", 20});
    come(4, who("w2", 21));
    report(4);
    for (int i = 0; i < 20; ++i) {
      pass(now_ + options_.replacement_timeout / 10);
      for (const auto link : {Link{1}, Link{3}, Link{4}}) step(Received{link, wire::Heartbeat{}});
    }
    EXPECT_FALSE(end_.has_value()) << restarted;
    EXPECT_EQ(machine_->stage(), Stage::kStopping);
  }
}

TEST_F(ControllerTest, TheSilenceOfAnOrphansSuccessorIsNoticedLikeAnyOther) {
  all_train(1);
  step(Received{2, wire::Finished{machine_->generation(), 9}});
  const wire::PlaceState dead{"w2", 20, 1, false, {Ending::Kind::kSignalled, 9}, 5};
  step(Received{90, wire::AgentState{"job", "agent", "host", {dead}}});
  ASSERT_EQ(state("w2"), SeatState::kOrphaned);
  const auto beat = [&](int times) {
    for (int i = 0; i < times; ++i) {
      pass(now_ + options_.lease / 4);
      for (const auto link : {Link{1}, Link{3}}) step(Received{link, wire::Heartbeat{}});
    }
  };
  beat(6);
  give("w2", 21, 2);
  come(4, who("w2", 21, 2));
  ASSERT_EQ(state("w2"), SeatState::kHeld);
  beat(5);
  EXPECT_EQ(state("w2"), SeatState::kSilent);
}

// P33. It also holds if a rank comes back to a generation that runs already.
TEST_F(ControllerTest, ResumeNamesARankThatHasEndedItsTraining) {
  all_train();
  EXPECT_EQ(at(Stage::kRunning, 1)->ended, kNoRank);
  step(Received{2, wire::Finished{machine_->generation(), 4}});
  step(ProvenDead{"w3", 30});
  come(4, who("w3", 31));
  report(1);
  report(4);
  ASSERT_EQ(machine_->stage(), Stage::kRunning);
  EXPECT_EQ(at(Stage::kRunning, 1)->ended, 1);
  EXPECT_EQ(at(Stage::kRunning, 4)->ended, 1);
  step(Closed{4});
  come(5, who("w3", 31));
  ASSERT_NE(at(Stage::kRunning, 5), nullptr);
  EXPECT_EQ(at(Stage::kRunning, 5)->ended, 1);
}

TEST_F(ControllerTest, TheProofOfAnOlderDeathIsNoProof) {
  all_train();
  step(ProvenDead{"w2", 19});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(ControllerTest, NothingIsSaidBeforeItIsDurable) {
  come(1, who("a", 1));
  come(2, who("b", 2));
  step(Connected{3, wire::PeerKind::kWorker});
  const auto actions = machine_->step(now_, Received{3, who("c", 3)});
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Store>(actions[0]));
  EXPECT_GT(machine_->step(now_, Stored{}).size(), 1U);
}

TEST_F(ControllerTest, AWorkersFailureEndsTheJobWithItsReason) {
  all_train();
  step(Received{2, wire::Failed{{.kind = Reason::Kind::kProgram, .detail = "NaN"}}});
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason, (Reason{.kind = Reason::Kind::kProgram, .rank = 1, .detail = "NaN"}));
}

TEST_F(ControllerTest, AStrangersFailureIsNotHeard) {
  all_train();
  step(Received{9, wire::Failed{{.kind = Reason::Kind::kProgram}}});
  EXPECT_FALSE(end_.has_value());
}

TEST_F(ControllerTest, AnAgentsWordThatCameBeforeTheRegisterCounts) {
  step(Received{9, wire::AgentState{"job", "agent", "host", {{"w3", 30, 1, false, {}, 0}}}});
  for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link, 1));
  EXPECT_EQ(state("w3"), SeatState::kDead);
}

TEST_F(ControllerTest, ALostRankThatSpeaksAgainIsAskedAgain) {
  for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link));
  report(1);
  pass(options_.lease);
  ASSERT_EQ(state("w1"), SeatState::kSilent);
  said_.clear();
  step(Received{1, wire::Heartbeat{}});
  EXPECT_NE(at(Stage::kStopping, 1), nullptr);
}

TEST_F(ControllerTest, AStandstillOfAllCostsNobodyItsPlace) {
  all_train();
  now_ = 10 * options_.lease;
  step(TimePassed{});
  for (const auto& member : machine_->members()) EXPECT_EQ(member.state, SeatState::kHeld);
  step(Received{1, wire::Heartbeat{}});
  step(Received{3, wire::Heartbeat{}});
  pass(now_ + options_.lease / 8);
  EXPECT_EQ(state("w1"), SeatState::kHeld);
  EXPECT_EQ(state("w2"), SeatState::kSilent);  // Only w2 sends nothing after the standstill.
  EXPECT_EQ(state("w3"), SeatState::kHeld);
}

TEST_F(ControllerTest, AJobForWhichNobodyAsksForARankEndsWithItsLastProcess) {
  const auto ended = [](const std::string& node) {
    return wire::PlaceState{node, 1, 1, false, {Ending::Kind::kExited, 0}, 0};
  };
  const auto state = [&](const std::string& last) {
    wire::AgentState m{"job", "agent", "host", {ended("w1"), ended("w2")}};
    m.places.push_back(last.empty() ? wire::PlaceState{"w3", 1, 1, true, {}, 0} : ended(last));
    return m;
  };
  step(Received{8, state("")});
  step(Received{9, state("")});  // The same agent on a new connection: four have not ended.
  EXPECT_FALSE(end_.has_value());
  step(Received{9, state("w3")});
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(end_->success);
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNobodyAsked);
}

TEST_F(ControllerTest, AnEndedJobIsOverForWhoeverComes) {
  all_train();
  step(Received{2, wire::Failed{{.kind = Reason::Kind::kProgram, .detail = "NaN"}}});
  machine_.emplace(options_, machine_->formation());
  step(Started{});
  come(8, who("w1", 11));
  ASSERT_NE(last<wire::JobEnded>(8), nullptr);
  EXPECT_FALSE(last<wire::JobEnded>(8)->success);
}

// A lifeline tells of a death before the exit code is known.
TEST_F(ControllerTest, TellsHowADeathCameOnceItsAgentKnows) {
  all_train(1);
  const auto told = [&](const Ending& ending, bool alive, std::uint64_t attempt) {
    const Incarnation incarnation = attempt == 1 ? 20 : 21;
    const wire::PlaceState place{"w2", incarnation, attempt, alive, ending, 5};
    step(Received{7, wire::AgentState{"job", "agent", "host", {place}}});
  };
  told({}, true, 1);
  told({}, true, 2);
  EXPECT_TRUE(hows_.empty());
  told({Ending::Kind::kSignalled, 9}, true, 2);
  told({Ending::Kind::kSignalled, 9}, true, 2);
  ASSERT_EQ(hows_.size(), 1U);
  EXPECT_EQ(hows_[0], (Reason{.kind = Reason::Kind::kRankLost,
                              .rank = 1,
                              .pid = 1,
                              .ending = {Ending::Kind::kSignalled, 9}}));
}

TEST_F(ControllerTest, AnAgentOfAFormerProtocolIsRefusedByName) {
  step(Received{9, wire::AgentState{.job = "job", .protocol = 0}});
  EXPECT_EQ(refusal(9).kind, Reason::Kind::kOtherProtocol);
}

// P32: otherwise the agent would take the exit of a worker for a death, and start it again.
TEST_F(ControllerTest, NobodyHearsOfTheEndBeforeAnAgentDoes) {
  options_.by_agent = true;
  options_.agent_patience = std::chrono::seconds(10);
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  all_train(1);
  step(Received{2, wire::Failed{{.kind = Reason::Kind::kProgram}}});
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(last<wire::JobEnded>(1), nullptr);
  EXPECT_FALSE(left_);
  step(Received{9, wire::AgentState{"job", "agent", "host", {}}});
  EXPECT_NE(last<wire::JobEnded>(9), nullptr);
  EXPECT_NE(last<wire::JobEnded>(1), nullptr);
  EXPECT_TRUE(left_);
}

// The scheduler's own agent would start it again if it had not heard of the end; others would not.
TEST_F(ControllerTest, TheEndIsHeldBackUntilTheSchedulersOwnAgentIsHere) {
  options_.by_agent = true;
  options_.own_agent = "host-7-";
  options_.agent_patience = std::chrono::seconds(10);
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  step(Received{9, wire::AgentState{"job", "other-7-1", "other", {{"w3", 30, 1, true}}}});
  all_train(1);
  step(Received{2, wire::Failed{{.kind = Reason::Kind::kProgram}}});
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(last<wire::JobEnded>(9), nullptr);
  EXPECT_FALSE(left_);
  step(Received{10, wire::AgentState{"job", "host-7-2", "host", {}}});
  EXPECT_NE(last<wire::JobEnded>(9), nullptr);
  EXPECT_NE(last<wire::JobEnded>(1), nullptr);
  EXPECT_TRUE(left_);
}

TEST_F(ControllerTest, TheAgentOfAnotherJobIsNotTheOneThatIsWaitedFor) {
  options_.by_agent = true;
  options_.agent_patience = std::chrono::seconds(10);
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  all_train(1);
  step(Received{2, wire::Failed{{.kind = Reason::Kind::kProgram}}});
  step(Received{9, wire::AgentState{"another", "agent", "host", {}}});
  EXPECT_EQ(refusal(9).kind, Reason::Kind::kOtherJob);
  EXPECT_EQ(last<wire::JobEnded>(1), nullptr);
  EXPECT_FALSE(left_);
}

// Processes that waited for a successor of this scheduler would wait in vain.
TEST_F(ControllerTest, ASchedulerThatNobodyStartsAgainEndsTheJobWhenItIsInterrupted) {
  all_train(1);
  step(Interrupted{15});
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason, (Reason{.kind = Reason::Kind::kSchedulerInterrupted, .count = 15}));
  EXPECT_EQ(machine_->stage(), Stage::kEnded);
  EXPECT_NE(last<wire::JobEnded>(1), nullptr);
}

TEST_F(ControllerTest, AnInterruptedSchedulerThatComesBackLeavesTheJobAlone) {
  for (const bool by_agent : {true, false}) {
    options_.by_agent = by_agent;
    options_.comes_back = !by_agent;
    machine_.emplace(options_, std::nullopt);
    step(Started{});
    all_train(1);
    step(Interrupted{15});
    EXPECT_FALSE(end_.has_value());
    EXPECT_EQ(machine_->stage(), Stage::kRunning);
  }
}

// P39: the key is on record together with the successor's lease, and told to all who wait for it.
TEST_F(ControllerTest, ASuccessionIsAKeyValueOfTheJob) {
  all_train(1);
  step(Received{1, wire::Get{5, {wire::kSucceeded}}});
  std::vector<std::string> order;
  const auto look = [&](const Event& event) {
    for (const auto& action : machine_->step(now_, event)) {
      const auto* store = std::get_if<Store>(&action);
      const auto* answer = std::get_if<Answer>(&action);
      if (store && store->formation && !store->kept.empty()) order.push_back(store->kept[0].key);
      if (answer && answer->link == 1 && answer->id == 5) order.emplace_back("told");
    }
  };
  give("w2", 99, 2);
  step(Connected{9, wire::PeerKind::kWorker});
  look(Received{9, who("w2", 99, 2)});
  look(Stored{});
  EXPECT_EQ(order, (std::vector<std::string>{wire::kSucceeded, "told"}));
}

TEST_F(ControllerTest, AnAgentIsWaitedForSomeSecondsOnly) {
  options_.by_agent = true;
  options_.agent_patience = std::chrono::seconds(10);
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  all_train(1);
  step(Received{2, wire::Failed{{.kind = Reason::Kind::kProgram}}});
  ASSERT_TRUE(machine_->deadline().has_value());
  pass(now_ + options_.agent_patience);
  EXPECT_NE(last<wire::JobEnded>(1), nullptr);
  EXPECT_TRUE(left_);
}

}  // namespace
}  // namespace holdfast::controller
