// Jobs on several hosts, and the loss of hosts.
#include <gtest/gtest.h>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using namespace std::chrono_literals;
using wire::Reason;
using wire::Stage;

TEST_F(ControllerTest, ASecondHostThatCanNotBeReachedEndsTheJob) {
  come(1, in_memory_only(who("0", 1, 0, "host-1")));
  come(2, in_memory_only(who("1", 2, 0, "host-2")));
  ASSERT_TRUE(end_.has_value());
  EXPECT_FALSE(end_->success);
  EXPECT_EQ(end_->reason, (Reason{.kind = Reason::Kind::kOtherHost,
                                  .node_id = "1",
                                  .host = "host-2",
                                  .other = "0",
                                  .other_host = "host-1"}));
  EXPECT_NE(last<wire::JobEnded>(2), nullptr);
}

TEST_F(ControllerTest, ASuccessorOnAHostThatCanNotBeReachedIsRefused) {
  all_train(1);
  come(9, in_memory_only(who("w2", 99, 2, "host-2")));
  EXPECT_NE(last<wire::Refused>(9), nullptr);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(ControllerTest, WhoSharesNoMemoryWithItsSourceHearsWhereToFetchTheState) {
  come_from_two_hosts();
  for (Link link = 1; link <= 3; ++link) {
    step(Received{link, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  }
  step(Received{1, wire::Repaired{machine_->generation()}});  // Rank 0 has begun version 0.
  EXPECT_EQ(at(Stage::kRepairing, 2)->order.source, (wire::Location{0, "host-1", "host-1:1"}));
  EXPECT_EQ(at(Stage::kRepairing, 3)->order.source, (wire::Location{0, "host-1", ""}));
}

TEST_F(ControllerTest, ASuccessorOnAnotherHostTakesThePlaceAndIsWhereTheOthersLookForIt) {
  come(1, who("0", 1, 0, "host-1"));
  come(2, who("1", 2, 0, "host-2"));
  come(3, who("2", 3, 0, "host-3"));
  for (Link link = 1; link <= 3; ++link) report(link);
  step(ProvenDead{"2", 3});
  come(4, who("2", 4, 0, "host-2"));
  report_all({1, 2});
  step(Received{4, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  EXPECT_EQ(at(Stage::kRepairing, 4)->order.act, wire::Act::kReceive);
  step(Received{4, wire::Repaired{machine_->generation()}});
  EXPECT_EQ(places_of(1),
            (std::vector<PeerPlace>{{0, "host-1:1", 0}, {1, "host-2:1", 1}, {1, "host-2:1", 1}}));
}

// A host that was cut off comes back, with its old arenas.
TEST_F(ControllerTest, WhatLiesOnAHostFromBeforeTheRankMovedIsNotItsState) {
  come_from_two_hosts();
  report_all({1, 2, 3});
  step(ProvenDead{"1", 2});
  come(4, who("1", 4, 0, "host-3"));
  report_all({1, 3});
  // This holds even after the scheduler was started again.
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  come(11, who("0", 1, 0, "host-1"));
  come(12, who("1", 4, 0, "host-3"));
  come(13, who("2", 3, 0, "host-1"));
  report_all({11, 13});
  step(Received{12, wire::Report{machine_->generation(), 2, 3}});
  ASSERT_NE(at(Stage::kRepairing, 12), nullptr);
  EXPECT_EQ(at(Stage::kRepairing, 12)->order.act, wire::Act::kReceive);
  step(Received{12, wire::Repaired{machine_->generation()}});
  ASSERT_EQ(machine_->stage(), Stage::kRunning);
  // From here on, what is there is the rank's state.
  step(Received{11, wire::GroupLost{machine_->generation()}});
  report_all({11, 12, 13});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

// The process there takes the old arena for the rank's state, so it can not begin version 0 in it.
TEST_F(ControllerTest, WhereAllIsLostAnArenaOfAFormerStayIsNoBeginning) {
  come_from_two_hosts();
  report_all({1, 2, 3});
  step(ProvenDead{"1", 2});
  come(4, who("1", 4, 0, "host-3"));
  for (const Link link : std::initializer_list<Link>{1, 3}) {
    step(Received{link, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  }
  step(Received{4, wire::Report{machine_->generation(), 2, 2}});
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
  EXPECT_EQ(end_->reason.rank, kNoRank);
  EXPECT_EQ(end_->reason.version, 4U);
}

TEST_F(ControllerTest, ADeathIsDatedByOurClockAlone) {
  options_.boot = "host-1";
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  come_from_two_hosts();
  report_all({1, 2, 3});
  const auto dies = [&](Link link, const std::string& host, const std::string& node,
                        Incarnation incarnation) {
    const wire::Ending killed{wire::Ending::Kind::kSignalled, 9};
    const wire::PlaceState dead{node, incarnation, 0, false, killed, 5};
    step(Received{link, wire::AgentState{"job", "agent-of-" + host, host, {dead}}});
  };
  dies(90, "host-1", "0", 1);
  dies(91, "host-2", "1", 2);
  EXPECT_EQ(detected_ns_, (std::vector<std::uint64_t>{5, 0}));
}

// Ranks 0 and 2 on host-1 may hold the private part of rank 1 on host-2, and rank 1 holds theirs.
class HoldersTest : public ControllerTest {
 protected:
  void SetUp() override {
    come_from_two_hosts();
    say(1, {4, 4});
    say(2, {4, 4});
    say(3, {4, 4});
    ASSERT_EQ(machine_->stage(), Stage::kRunning);
  }
  struct Has {
    Version version;
    Version staged;
    std::vector<wire::HeldCopy> held = {};
  };
  void say(Link link, const Has& has) {
    step(Received{link,
                  wire::Report{machine_->generation(), has.version, has.staged, true, has.held}});
  }
  // Rank 1's host is lost, and a process on another host gets its place, on link 4.
  void lose_rank_1() {
    step(ProvenDead{"1", 2});
    come(4, who("1", 4, 0, "host-3"));
    say(4, {kNoVersion, kNoVersion});
  }
};

TEST_F(HoldersTest, GiveWhatALostHostHadAlone) {
  lose_rank_1();
  say(1, {6, 7, {{1, 6, 7}}});
  say(3, {7, 7, {}});
  for (const Link link : {Link{1}, Link{3}})
    step(Received{link, wire::Repaired{machine_->generation()}});
  const auto* part = at(Stage::kRepairing, 4);
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->version, 7U);
  EXPECT_EQ(part->order.act, wire::Act::kReceive);
  EXPECT_EQ(part->order.private_source, (wire::Location{0, "host-1", "host-1:1"}));
  EXPECT_FALSE(part->order.source.endpoint.empty());
  // A mere holder has no order.
  EXPECT_EQ(at(Stage::kRepairing, 3), nullptr);
}

TEST_F(HoldersTest, WhoSharesTheirMemoryNeedsNoLink) {
  step(ProvenDead{"1", 2});
  come(4, who("1", 4, 0, "host-1"));
  say(4, {kNoVersion, kNoVersion});
  say(1, {6, 6, {{1, 6, 6}}});
  say(3, {6, 6});
  EXPECT_EQ(at(Stage::kRepairing, 4)->order.private_source, (wire::Location{0, "host-1", ""}));
}

TEST_F(HoldersTest, AreOfNoUseWithAnotherVersion) {
  lose_rank_1();
  say(1, {7, 7, {{1, 5, 6}, {1, 7, 7}, {2, 7, 7}}});  // Only the first copy counts for each ward.
  say(3, {7, 7, {{0, 7, 7}}});
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
  EXPECT_EQ(end_->reason.rank, 1);
}

// The memory on the new host may be from an earlier stay: what it holds for others is never used.
TEST_F(HoldersTest, ForgetWhatTheyHeldOnceTheyHaveMoved) {
  lose_rank_1();
  say(1, {6, 6, {{1, 6, 6}}});
  say(3, {6, 6});
  EXPECT_TRUE(at(Stage::kRepairing, 4)->order.moved);
  step(Received{4, wire::Repaired{machine_->generation()}});
  step(ProvenDead{"0", 1});
  come(5, who("0", 5, 0, "host-1"));
  say(5, {kNoVersion, kNoVersion});
  say(3, {6, 6});
  say(4, {6, 6, {{0, 6, 6}}});
  ASSERT_NE(at(Stage::kRepairing, 5), nullptr);
  EXPECT_FALSE(at(Stage::kRepairing, 5)->order.moved);  // This rank has not moved.
}

// The memory on the new host may be from an earlier stay.
TEST_F(HoldersTest, HaveNothingOnceTheyHaveMoved) {
  step(ProvenDead{"1", 2});
  step(ProvenDead{"0", 1});
  come(4, who("1", 4, 0, "host-1"));
  come(5, who("0", 5, 0, "host-2"));
  say(4, {kNoVersion, kNoVersion, {{0, 6, 6}}});
  say(5, {kNoVersion, kNoVersion, {{1, 6, 6}}});
  say(3, {6, 6, {}});
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
}

TEST_F(HostsTest, AHostThatIsSilentIsLostLongBeforeItsLeases) {
  beat(400ms, {90});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  beat(500ms, {90});
  EXPECT_EQ(state("2"), SeatState::kSilent);
  EXPECT_EQ(state("0"), SeatState::kHeld);
  EXPECT_EQ(machine_->stage(), Stage::kStopping);
}

TEST_F(HostsTest, AllHostsHearOfALostOne) {
  beat(900ms, {90});
  EXPECT_EQ(last<wire::Waiting>(90)->reason,
            (Reason{.kind = Reason::Kind::kHostLost, .count = 1, .host = "host-2"}));
  step(Connected{95, wire::PeerKind::kAgent});
  step(Received{95, wire::AgentState{"job", "agent-9", "host-9", {}, wire::kProtocol, 1}});
  EXPECT_EQ(
      last<wire::Waiting>(90)->reason,
      (Reason{
          .kind = Reason::Kind::kHostLost, .count = 1, .host = "host-2", .other_host = "host-9"}));
}

// A host is lost before the job has begun, and the same command is started there again.
TEST_F(HostsTest, ItsFormerAgentIsInNobodysWayOnceItIsSilent) {
  machine_.emplace(options_, std::nullopt);
  said_.clear();
  step(Started{});
  tell(90, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}});
  tell(91, "agent-2", "host-2", {{"2", 3, 2, true}});
  come(3, who("2", 3, 2, "host-2"));
  beat(300ms, {90, 91});
  tell(92, "agent-3", "host-2", {{"2", 9, 1, true}});
  come(4, who("2", 9, 1, "host-2"));
  EXPECT_EQ(last<wire::Refused>(92), nullptr);
  beat(400ms, {90, 92});
  ASSERT_NE(machine_->find("2"), nullptr);
  EXPECT_EQ(machine_->find("2")->seat.incarnation, 3U);
  beat(200ms, {90, 92});
  ASSERT_NE(machine_->find("2"), nullptr);
  EXPECT_EQ(machine_->find("2")->seat.incarnation, 9U);
  come(1, who("0", 1, 1, "host-1"));
  come(2, who("1", 2, 1, "host-1"));
  EXPECT_EQ(machine_->stage(), Stage::kStopping);
}

TEST_F(HostsTest, AnAgentThatLivesKeepsItsPlacesBeforeTheJobBegins) {
  machine_.emplace(options_, std::nullopt);
  said_.clear();
  step(Started{});
  tell(91, "agent-2", "host-2", {{"2", 3, 1, true}});
  beat(300ms, {91});
  tell(92, "agent-3", "host-3", {{"2", 9, 1, true}});
  beat(2s, {91, 92});
  ASSERT_NE(last<wire::Waiting>(92), nullptr);
  EXPECT_EQ(last<wire::Waiting>(92)->reason, (Reason{.kind = Reason::Kind::kNotItsPlace,
                                                     .node_id = "2",
                                                     .other = "agent-2",
                                                     .other_host = "host-2"}));
  come(4, who("2", 9, 1, "host-3"));
  EXPECT_EQ(machine_->find("2"), nullptr);
}

TEST_F(HostsTest, TheSchedulersOwnHostIsNotLostWhileItRuns) {
  options_.own_agent = "agent-2";
  machine_.emplace(options_, record_);
  step(Started{});
  tell(91, "agent-2", "host-2", {{"2", 3, 1, true}});
  come(3, who("2", 3, 1, "host-2"));
  pass(now_ + 20s);
  EXPECT_EQ(state("2"), SeatState::kHeld);
  pass(now_ + 20s);
  EXPECT_EQ(state("2"), SeatState::kSilent);  // Its lease has run out.
}

TEST_F(HostsTest, AnotherAgentMayHaveThePlacesOfALostHost) {
  tell(92, "agent-3", "host-3", {{"2", 9, 2, true}});
  beat(2s, {90, 91, 92});
  come(4, who("2", 9, 2, "host-3"));
  EXPECT_EQ(rank(4), kNoRank) << "not while the first one is there";
  beat(900ms, {90, 92});
  come(4, who("2", 9, 2, "host-3"));
  EXPECT_EQ(rank(4), 2);
  EXPECT_EQ(state("2"), SeatState::kHeld);
}

TEST_F(HostsTest, WhoAsksForThePlacesOfAHostBeforeItsLossIsKnownHasThemThen) {
  beat(200ms, {90});
  tell(93, "agent-3", "host-3", {{"2", 9, 2, true}});
  come(4, who("2", 9, 2, "host-3"));
  EXPECT_EQ(rank(4), kNoRank);
  beat(900ms, {90});
  EXPECT_EQ(last<wire::Refused>(93), nullptr);
  EXPECT_EQ(rank(4), 2);
}

// The former scheduler has lost its lease, so its host may be lost.
TEST_F(HostsTest, TheHostOfTheFormerSchedulerIsMissedSooner) {
  options_.suspect_host = "host-2";
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  beat(1'500ms, {});
  EXPECT_EQ(state("2"), SeatState::kSilent);
  EXPECT_EQ(state("0"), SeatState::kHeld);
  beat(3s, {});
  EXPECT_EQ(state("0"), SeatState::kSilent);
}

TEST_F(HostsTest, HostsThatComeBackToANewSchedulerHaveLostNothing) {
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  pass(now_ + 1s);
  tell(190, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}});
  come(101, who("0", 1, 1, "host-1"));
  come(102, who("1", 2, 1, "host-1"));
  come(103, who("2", 3, 1, "host-2"));  // The agent of this host takes longer.
  beat(1s, {190});
  tell(191, "agent-2", "host-2", {{"2", 3, 1, true}});
  beat(5s, {190, 191});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  for (const char* node : {"0", "1", "2"}) EXPECT_EQ(state(node), SeatState::kHeld) << node;
}

TEST_F(HostsTest, AHostThatMayBeOversubscribedTakesThePlacesToo) {
  step(Received{
      90,
      wire::AgentState{
          "job", "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}}, wire::kProtocol, 3}});
  beat(900ms, {90});
  EXPECT_EQ(granted(90), (Nodes{"0", "1", "2"}));
}

// The agent of another host counts attempts from 1. Its processes may come before its own table.
TEST_F(HostsTest, AttemptsAreCountedAnewOnAnotherHost) {
  step(Received{91, wire::AgentState{"job", "agent-2", "host-2", {{"2", 5, 3, true}}}});
  come(4, who("2", 5, 3, "host-2"));
  report_all({1, 2, 4});
  beat(200ms, {90});
  come(5, who("2", 9, 1, "host-3"));
  tell(93, "agent-3", "host-3", {{"2", 9, 1, true}});
  EXPECT_EQ(last<wire::Refused>(5), nullptr);
  EXPECT_EQ(rank(5), kNoRank);
  beat(900ms, {90});
  EXPECT_EQ(rank(5), 2);
}

TEST_F(HostsTest, AWorkerThatSpeaksShowsThatItsHostLives) {
  beat(3s, {90, 3});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(HostsTest, AHostIsLostAtOnceWhereItsKernelRefusesAllOfIt) {
  step(Closed{91});
  pass(now_ + 200ms);
  EXPECT_TRUE(probes_.empty());  // A worker is still connected.
  step(Closed{3});
  pass(now_);
  ASSERT_EQ(probes_.size(), 1U);
  EXPECT_EQ(probes_[0].node_id, "2");
  EXPECT_EQ(probes_[0].endpoint, "host-2:1");
  step(NotThere{"2", 2});  // This was another process.
  EXPECT_EQ(state("2"), SeatState::kHeld);
  step(NotThere{"2", 3});
  EXPECT_EQ(state("2"), SeatState::kSilent);
}

TEST_F(HostsTest, AHostIsNotLostWhileSomeOfItsProcessesMayBeThere) {
  step(Closed{1});
  step(Closed{2});
  step(Closed{90});
  pass(now_);
  EXPECT_EQ(probes_.size(), 2U);
  step(NotThere{"0", 1});
  beat(400ms, {91});
  EXPECT_EQ(state("0"), SeatState::kHeld);
  EXPECT_EQ(probes_.back().node_id, "1") << "of the other one nothing more is to be known";
  step(NotThere{"1", 2});
  EXPECT_EQ(state("0"), SeatState::kSilent);
  EXPECT_EQ(state("1"), SeatState::kSilent);
  EXPECT_EQ(state("2"), SeatState::kHeld);
}

// A firewall that drops its table can do this.
TEST_F(HostsTest, AHostWhoseConnectionsWereAllResetHasTheTimeOfASilentOne) {
  const auto reset = [&](Link agent, Link worker) {
    step(Closed{agent});
    step(Closed{worker});
    beat(400ms, {90});
    EXPECT_EQ(state("2"), SeatState::kHeld);
    EXPECT_GE(probes_.size(), 5U) << "it may be cut off for a while, and dead nevertheless";
    EXPECT_LE(probes_.size(), 8U);
  };
  reset(91, 3);
  tell(92, "agent-2", "host-2", {{"2", 3, 1, true}});
  come(13, who("2", 3, 1, "host-2"));
  step(NotThere{"2", 3});  // False: the process is connected.
  beat(2s, {90, 92});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  EXPECT_EQ(machine_->generation(), 1U);
  probes_.clear();
  reset(92, 13);
  beat(300ms, {90});
  EXPECT_EQ(state("2"), SeatState::kSilent);
}

TEST_F(HostsTest, AfterARestartASpareHostMayStillBeOnItsWayAtTheEnd) {
  for (const Duration patience : {Duration(1s), Duration(4s)}) {
    machine_.emplace(options_, record_);
    left_ = lingers_ = false;
    step(Started{});
    tell(92, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}});
    tell(93, "agent-2", "host-2", {{"2", 3, 1, true}});
    come(11, who("0", 1, 1, "host-1"));
    come(12, who("1", 2, 1, "host-1"));
    come(13, who("2", 3, 1, "host-2"));
    beat(patience, {92, 93});
    const auto record = record_;
    step(Received{92, wire::Failed{{.kind = Reason::Kind::kInterrupted}}});
    EXPECT_TRUE(left_);
    EXPECT_EQ(lingers_, patience == 1s);
    record_ = record;
  }
}

// If a job is continued, a process may come before its agent, which counts attempts anew.
TEST_F(HostsTest, AfterARestartALowerAttemptWaitsForTheWordOfItsAgent) {
  step(Closed{3});
  step(Received{91, wire::AgentState{"job", "agent-2", "host-2", {{"2", 5, 2, true}}}});
  come(4, who("2", 5, 2, "host-2"));
  report_all({1, 2, 4});
  ASSERT_EQ(machine_->stage(), Stage::kRunning);
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  come(11, who("2", 9, 1, "host-2"));
  EXPECT_EQ(last<wire::Refused>(11), nullptr);
  EXPECT_EQ(rank(11), kNoRank);
  tell(93, "agent-3", "host-2", {{"2", 9, 1, true}});
  EXPECT_EQ(rank(11), 2);
}

TEST_F(HostsTest, AHostThatHasHungUpOnlyInPartHasTheTimeOfASilentOne) {
  step(Closed{91});
  beat(400ms, {90});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  beat(500ms, {90});
  EXPECT_EQ(state("2"), SeatState::kSilent);
}

TEST_F(HostsTest, RanksAreGivenOnceEachAgentHasSpoken) {
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  come(1, who("0", 1, 1, "host-1"));
  come(2, who("1", 2, 1, "host-1"));
  tell(90, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}});
  come(3, who("2", 3, 1, "host-2"));
  EXPECT_EQ(machine_->stage(), Stage::kAssembling);
  tell(91, "agent-2", "host-2", {{"2", 3, 1, true}});
  EXPECT_EQ(machine_->stage(), Stage::kStopping);
}

TEST_F(HostsTest, AnAgentThatComesBackHasLostNothing) {
  step(Closed{91});
  tell(92, "agent-2", "host-2", {{"2", 3, 1, true}});
  beat(2s, {90, 92});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(HostsTest, AStandstillOfTheSchedulerCostsNoHostItsRanks) {
  now_ += 5s;
  step(TimePassed{});  // The scheduler heard nobody meanwhile: the messages wait to be read.
  for (const Link link : std::initializer_list<Link>{90, 91})
    step(Received{link, wire::Heartbeat{}});
  beat(2s, {90, 91});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

TEST_F(HostsTest, ABusyHostHasMoreTime) {
  for (int times = 0; times < 5; ++times) {
    pass(now_ + 400ms);
    for (const Link link : std::initializer_list<Link>{90, 91})
      step(Received{link, wire::Heartbeat{}});
  }
  beat(1s, {90});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  beat(2s, {90});
  EXPECT_EQ(state("2"), SeatState::kSilent);
}

}  // namespace
}  // namespace holdfast::controller
