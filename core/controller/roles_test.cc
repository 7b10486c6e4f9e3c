// Processes of the job that err or are malicious: each may speak only for itself, and what can not
// be true changes nothing.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {

using wire::Ending;
using wire::Reason;
using wire::Stage;

namespace {

constexpr Version kFarAhead = 1'000'000'000;
constexpr Link kAgent = 80;

class RolesTest : public ControllerTest {
 protected:
  // The table of the agent that has started all ranks, w1 to w3.
  void tell(Link link, const std::vector<wire::PlaceState>& places,
            const std::string& agent_id = "agent") {
    step(Received{link, wire::AgentState{"job", agent_id, "host", places}});
  }
  std::vector<wire::PlaceState> places() {
    return {{"w1", 10, 1, true}, {"w2", 20, 1, true}, {"w3", 30, 1, true}};
  }
  void all_train_with_agent() {
    tell(kAgent, places());
    all_train(1);
    said_.clear();
    closed_.clear();
  }
  [[nodiscard]] bool nothing_has_changed() const {
    const auto& all = machine_->members();
    return machine_->stage() == Stage::kRunning && machine_->generation() == 1 &&
           std::all_of(all.begin(), all.end(),
                       [](const Member& m) { return m.state == SeatState::kHeld; });
  }
  void run_at(Version version) {
    for (Link link = 1; link <= 3; ++link) {
      step(Received{link, wire::Progress{machine_->generation(), version}});
    }
  }
  void report_at(Link link, Version version, Version staged, bool own = false) {
    step(Received{link, wire::Report{machine_->generation(), version, staged, own}});
  }
  // The agent kills w2 and gives the place to another process, on link 22.
  void replace_w2() {
    auto all = places();
    all[1] = {"w2", 21, 2, true, {Ending::Kind::kSignalled, 9}, 5};
    tell(kAgent, all);
    come(22, who("w2", 21, 2));
    ASSERT_EQ(machine_->stage(), Stage::kStopping);
  }
};

// ---- Agents -------------------------------------------------------------------------------------

// An agent starts its next spare when it hears of progress.
TEST_F(RolesTest, AgentsHearOfProgressOnceAllHaveMadeAStep) {
  all_train_with_agent();
  run_at(4);
  pass(now_ + std::chrono::seconds(1));
  replace_w2();
  for (const Link link : std::initializer_list<Link>{1, 3, 22}) report_at(link, 5, 5);
  ASSERT_EQ(machine_->stage(), Stage::kRunning);
  said_.clear();
  for (const Link link : std::initializer_list<Link>{1, 3, 22}) {
    EXPECT_EQ(last<wire::JobProgress>(kAgent), nullptr);
    step(Received{link, wire::Progress{2, 6}});
  }
  ASSERT_NE(last<wire::JobProgress>(kAgent), nullptr);
  EXPECT_EQ(last<wire::JobProgress>(kAgent)->version, 6U);
}

TEST_F(RolesTest, AnotherAgentDoesNotSpeakForAPlace) {
  all_train_with_agent();
  tell(81, {{"w2", 99, 99, false, {Ending::Kind::kSignalled, 9}, 1}}, "another");
  ASSERT_NE(last<wire::Waiting>(81), nullptr);
  EXPECT_EQ(last<wire::Waiting>(81)->reason, (Reason{.kind = Reason::Kind::kNotItsPlace,
                                                     .node_id = "w2",
                                                     .other = "agent",
                                                     .other_host = "host"}));
  EXPECT_EQ(last<wire::Places>(81), nullptr);
  EXPECT_TRUE(nothing_has_changed());
  step(Closed{kAgent});
  EXPECT_EQ(state("w2"), SeatState::kDead);
}

// If all is on one host, an agent that is gone is not waited for, however often this happens.
TEST_F(RolesTest, AnAgentThatIsStartedAgainAndAgainHasItsPlaces) {
  all_train_with_agent();
  Link link = kAgent;
  for (const char* name : {"second", "third"}) {
    step(Closed{link});
    tell(++link, {{"w2", 99, 1, true}}, name);
    EXPECT_EQ(last<wire::Places>(link), nullptr) << name;
    EXPECT_EQ(refusal(link), Reason{}) << name;
  }
}

TEST_F(RolesTest, AnAgentThatComesBackTakesUpItsPlaces) {
  all_train_with_agent();
  auto all = places();
  all[1] = {"w2", 20, 1, false, {Ending::Kind::kSignalled, 9}, 1};
  tell(81, all);
  EXPECT_TRUE(closed_.contains(kAgent));
  EXPECT_EQ(refusal(81), Reason{});
  EXPECT_EQ(state("w2"), SeatState::kDead);
}

TEST_F(RolesTest, AnotherAgentMaySpeakForAPlaceWhoseAgentHasLeft) {
  all_train_with_agent();
  step(Closed{kAgent});
  tell(81, {{"w2", 20, 1, false, {Ending::Kind::kSignalled, 9}, 1}}, "another");
  EXPECT_EQ(state("w2"), SeatState::kDead);
}

TEST_F(RolesTest, AnAgentWithoutAPlaceOfTheJobDoesNotEndIt) {
  all_train_with_agent();
  tell(81, {{"x", 1, 1, true}}, "another");
  step(Received{81, wire::Failed{{.kind = Reason::Kind::kInterrupted}}});
  EXPECT_TRUE(nothing_has_changed());
  EXPECT_FALSE(end_.has_value());
}

TEST_F(RolesTest, AnAgentDoesNotEndAJobInWhichOthersRun) {
  tell(kAgent, places());
  tell(81,
       {{"x", 1, 1, false, {Ending::Kind::kExited, 0}},
        {"y", 1, 1, false, {Ending::Kind::kExited, 0}},
        {"z", 1, 1, false, {Ending::Kind::kExited, 0}}},
       "another");
  EXPECT_FALSE(end_.has_value());
}

TEST_F(RolesTest, OnlyItsAgentIsToldToEndAProcess) {
  all_train_with_agent();
  tell(81, {{"x", 1, 1, true}}, "another");
  for (int i = 0; i < 4; ++i) {
    pass(now_ + options_.lease / 4);
    for (const auto link : {Link{1}, Link{3}}) step(Received{link, wire::Heartbeat{}});
  }
  ASSERT_EQ(state("w2"), SeatState::kSilent);
  EXPECT_NE(last<wire::Evict>(kAgent), nullptr);
  EXPECT_EQ(last<wire::Evict>(81), nullptr);
}

// ---- Attempts -----------------------------------------------------------------------------------

TEST_F(RolesTest, AHigherAttemptThatNoAgentGaveDisplacesNobody) {
  all_train_with_agent();
  come(9, who("w2", 99, 99));
  EXPECT_EQ(rank(9), kNoRank);
  EXPECT_TRUE(nothing_has_changed());
  step(Closed{kAgent});
  come(10, who("w2", 98, 99));
  EXPECT_TRUE(nothing_has_changed()) << "nor while no agent is here";
}

TEST_F(RolesTest, ARegisterMayOvertakeItsAgentsWord) {
  all_train_with_agent();
  come(9, who("w2", 21, 2));
  ASSERT_TRUE(nothing_has_changed());
  auto all = places();
  all[1] = {"w2", 21, 2, true, {Ending::Kind::kSignalled, 9}, 5};
  tell(kAgent, all);
  EXPECT_EQ(rank(9), 1);
  EXPECT_EQ(machine_->members()[1].seat.incarnation, 21U);
}

TEST_F(RolesTest, WhoIsRefusedDoesNotWaitAnyMore) {
  all_train_with_agent();
  come(9, who("w2", 21, 2));
  come(9, who("w3", 31, 2));
  ASSERT_EQ(refusal(9).kind, Reason::Kind::kTwoProcesses);
  auto all = places();
  all[1] = {"w2", 21, 2, true, {Ending::Kind::kSignalled, 9}, 5};
  tell(kAgent, all);
  EXPECT_EQ(state("w2"), SeatState::kDead);
  come(10, who("w2", 21, 2));
  EXPECT_EQ(rank(10), 1);
}

TEST_F(RolesTest, WhoWaitsForAWordThatNamesAnotherWaitsOn) {
  all_train_with_agent();
  come(9, who("w2", 99, 2));
  auto all = places();
  all[1] = {"w2", 21, 2, true, {Ending::Kind::kSignalled, 9}, 5};
  tell(kAgent, all);
  EXPECT_EQ(rank(9), kNoRank);
  come(10, who("w2", 21, 2));
  EXPECT_EQ(rank(10), 1);
}

TEST_F(RolesTest, BeforeTheRanksAreGivenThePlaceIsForWhomTheAgentNames) {
  come(7, who("w1", 77, 99));  // This process comes before any agent.
  tell(kAgent, places());
  come(8, who("w1", 78, 1));
  come(9, who("w1", 79, 5));
  for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link, 1));
  EXPECT_EQ(rank(1), 0);
  for (const Link link : std::initializer_list<Link>{7, 8, 9}) EXPECT_EQ(rank(link), kNoRank);
  EXPECT_EQ(machine_->members()[0].seat.incarnation, 10U);
}

TEST_F(RolesTest, AnAgentsProcessDoesNotDisplaceOneThatWasStartedByHand) {
  all_train();
  give("w2", 21, 1);
  come(9, who("w2", 21, 1));
  EXPECT_TRUE(nothing_has_changed());
  ASSERT_NE(last<wire::Waiting>(9), nullptr);
  EXPECT_EQ(last<wire::Waiting>(9)->reason.kind, Reason::Kind::kLeased);
}

// ---- Workers ------------------------------------------------------------------------------------

TEST_F(RolesTest, AConnectionIsThatOfOneProcess) {
  come(1, who("w1", 10));
  come(1, who("w2", 20));
  EXPECT_EQ(refusal(1).kind, Reason::Kind::kTwoProcesses);
  EXPECT_EQ(machine_->arrivals().size(), 1U);
}

TEST_F(RolesTest, WhoComesAgainWithAnIncarnationIsOnItsHost) {
  all_train_with_agent();
  come(9, who("w2", 20, 1, "elsewhere"));
  EXPECT_EQ(refusal(9), (Reason{.kind = Reason::Kind::kNotThatWorker,
                                .node_id = "w2",
                                .host = "elsewhere",
                                .other_host = "host"}));
  EXPECT_TRUE(nothing_has_changed());
  EXPECT_EQ(machine_->members()[1].link, 2U);
}

// Found by the simulation, with seeds 244279 and 900074837: messages that came late on the former
// connection were taken for a step back.
TEST_F(RolesTest, WhatComesLateOnAFormerConnectionIsNotHeard) {
  all_train_with_agent();
  step(Connected{50, wire::PeerKind::kWorker});
  come(51, who("w2", 20, 1));
  step(Received{51, wire::Progress{1, 9}});
  come(50, who("w2", 20, 1));
  step(Received{50, wire::Progress{1, 7}});
  EXPECT_EQ(machine_->members()[1].link, 51U);
  step(Connected{52, wire::PeerKind::kWorker});
  step(Connected{53, wire::PeerKind::kWorker});
  come(53, who("w2", 20, 1));
  step(Closed{53});
  come(52, who("w2", 20, 1));
  step(Received{52, wire::Progress{1, 8}});
  EXPECT_EQ(machine_->members()[1].link, 0U) << "it is making another one";
  EXPECT_EQ(machine_->members()[1].version, 9U);
  EXPECT_TRUE(closed_.contains(50));
  EXPECT_TRUE(nothing_has_changed());
}

TEST_F(RolesTest, TheDeadDoNotComeAgain) {
  all_train_with_agent();
  replace_w2();
  auto all = places();
  all[1] = {"w2", 21, 2, false, {Ending::Kind::kSignalled, 9}, 6};
  tell(kAgent, all);
  ASSERT_EQ(state("w2"), SeatState::kDead);
  come(23, who("w2", 21, 2));
  EXPECT_EQ(refusal(23).kind, Reason::Kind::kNewerProcess);
}

TEST_F(RolesTest, NobodyPutsTheSchedulersOwnKeyValue) {
  all_train_with_agent();
  step(Received{1, wire::Put{1, wire::kSucceeded, ""}});
  EXPECT_EQ(refusal(1).kind, Reason::Kind::kNotItsWord);
  EXPECT_EQ(machine_->key_values().size(), 0U);
}

// ---- Versions -----------------------------------------------------------------------------------

TEST_F(RolesTest, AReportOfAVersionThatCanNotBeCostsItsSenderThePlace) {
  all_train_with_agent();
  run_at(7);
  replace_w2();
  report_at(1, 7, 7);
  report_at(22, 6, 7);
  report_at(3, kFarAhead, kFarAhead);
  EXPECT_FALSE(end_.has_value());
  EXPECT_EQ(refusal(3).kind, Reason::Kind::kImpossible);
  EXPECT_EQ(refusal(3).version, kFarAhead);
  EXPECT_EQ(refusal(3).count, 7);
  EXPECT_EQ(state("w3"), SeatState::kDead);
  ASSERT_NE(last<wire::Evict>(kAgent), nullptr);
  EXPECT_EQ(last<wire::Evict>(kAgent)->node_id, "w3");
  auto all = places();
  all[1] = {"w2", 21, 2, true, {Ending::Kind::kSignalled, 9}, 5};
  all[2] = {"w3", 31, 2, true, {Ending::Kind::kWasSilent}, 6};
  tell(kAgent, all);
  come(33, who("w3", 31, 2));
  report_at(33, 7, 7);
  EXPECT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().version, 7U);
}

TEST_F(RolesTest, WhoHasLessThanItToldOfIsRefusedAtOnce) {
  all_train_with_agent();
  run_at(7);
  replace_w2();
  report_at(3, 5, 5);
  EXPECT_EQ(refusal(3).kind, Reason::Kind::kImpossible);
  EXPECT_EQ(state("w3"), SeatState::kDead);
}

TEST_F(RolesTest, ASuccessorIsNotHeldToWhatTheFormerProcessSaid) {
  all_train_with_agent();
  step(Received{2, wire::Progress{1, kFarAhead}});
  replace_w2();
  report_at(22, 6, 7);
  EXPECT_EQ(refusal(22), Reason{});
}

TEST_F(RolesTest, ProgressGoesForwardOnly) {
  all_train_with_agent();
  run_at(7);
  step(Received{2, wire::Progress{1, 6}});
  EXPECT_EQ(refusal(2).kind, Reason::Kind::kImpossible);
  EXPECT_EQ(machine_->stage(), Stage::kStopping);
}

TEST_F(RolesTest, NobodyEndsItsTrainingBeforeWhereItWas) {
  all_train_with_agent();
  run_at(7);
  step(Received{2, wire::Finished{1, 6}});
  EXPECT_EQ(refusal(2).kind, Reason::Kind::kImpossible);
  EXPECT_FALSE(machine_->members()[1].seat.finished);
}

TEST_F(RolesTest, TheCopyOfARankThatEndedTooFarAheadIsNotCounted) {
  all_train_with_agent();
  run_at(7);
  step(Received{3, wire::Finished{1, kFarAhead}});
  replace_w2();
  report_at(1, 7, 7);
  report_at(22, 6, 7);
  EXPECT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().version, 7U);
}

// ---- Bounds -------------------------------------------------------------------------------------

TEST_F(RolesTest, WhatIsKeptForAConnectionHasABound) {
  come(1, who(std::string(kMaxNameBytes + 1, 'n'), 10));
  EXPECT_EQ(refusal(1).kind, Reason::Kind::kTooMuch);
  come(2, who("w2", 20, 0, std::string(kMaxNameBytes + 1, 'h')));
  EXPECT_EQ(refusal(2).kind, Reason::Kind::kTooMuch);
  tell(81, {{"a", 1, 1}, {"b", 1, 1}, {"c", 1, 1}, {"d", 1, 1}});
  EXPECT_EQ(refusal(81).kind, Reason::Kind::kTooMuch);
  EXPECT_EQ(refusal(81).count, 4);
  wire::AgentState state{"job", "agent", "host", {}};
  state.rehearsals.resize(4);
  step(Received{82, state});
  EXPECT_EQ(refusal(82).detail, "rehearsals");
  EXPECT_TRUE(machine_->arrivals().empty());
}

TEST_F(RolesTest, TheWordsOfAFailureHaveABound) {
  all_train_with_agent();
  Reason reason{.kind = Reason::Kind::kProgram, .detail = std::string(10 * kMaxTextBytes, 'x')};
  reason.awaited.resize(60'000);
  step(Received{2, wire::Failed{reason}});
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason.detail.size(), kMaxTextBytes);
  EXPECT_TRUE(end_->reason.awaited.empty());
}

// The scheduler's log is to name a process that was started by hand in surplus, or a second time.
TEST_F(RolesTest, WhoAsksForATakenPlaceIsNoted) {
  const auto by_hand = [&](const std::string& node, Incarnation incarnation, std::int64_t pid) {
    auto m = who(node, incarnation);
    m.pid = pid;
    return m;
  };
  come(1, by_hand("w1", 10, 41));
  come(11, by_hand("w1", 11, 42));  // The ranks are not given yet.
  ASSERT_EQ(taken_.size(), 1U);
  EXPECT_EQ(taken_[0].reason.kind, Reason::Kind::kNodeTaken);
  EXPECT_EQ(taken_[0].reason.pid, 41);
  EXPECT_EQ(taken_[0].seeker.pid, 42);
  come(2, by_hand("w2", 20, 43));
  come(3, by_hand("w3", 30, 44));
  come(12, by_hand("w1", 12, 45));
  ASSERT_EQ(taken_.size(), 2U);
  EXPECT_EQ(taken_[1].reason.kind, Reason::Kind::kLeased);
  EXPECT_EQ(taken_[1].reason.pid, 41);
  EXPECT_EQ(taken_[1].seeker.pid, 45);
  EXPECT_TRUE(machine_->waits_for_place("w1", 45));
  EXPECT_FALSE(machine_->waits_for_place("w1", 41));
  come(13, by_hand("w4", 40, 46));
  ASSERT_EQ(taken_.size(), 3U);
  EXPECT_EQ(taken_[2].reason.kind, Reason::Kind::kPlacesTaken);
  EXPECT_EQ(taken_[2].seeker.node_id, "w4");
  EXPECT_EQ(taken_[2].seeker.host, "host");
  step(ProvenDead{"w1", 10});
  EXPECT_EQ(rank(12), 0);
  EXPECT_FALSE(machine_->waits_for_place("w1", 45));
}

// The agent knows of such a process, which waits for moments only.
TEST_F(RolesTest, AProcessThatItsAgentHasNotSpokenOfYetIsNotNoted) {
  give("w1", 10, 1);
  all_train(1);
  come(11, who("w1", 11, 2));
  ASSERT_NE(last<wire::Waiting>(11), nullptr);
  EXPECT_TRUE(taken_.empty());
}

}  // namespace
}  // namespace holdfast::controller
