// Which agent owns which place: spare hosts, hosts that come back, places that are moved.
#include <gtest/gtest.h>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using namespace std::chrono_literals;
using wire::Reason;
using wire::Stage;

// A spare host on link 95.
class SpareHostTest : public HostsTest {
 protected:
  void SetUp() override {
    HostsTest::SetUp();
    spare({});
  }
  void spare(std::vector<wire::PlaceState> places) {
    if (places.empty()) step(Connected{95, wire::PeerKind::kAgent});
    const std::uint32_t takes = places.empty() ? 2 : 0;
    step(Received{95, wire::AgentState{"job", "agent-9", "host-9", std::move(places),
                                       wire::kProtocol, takes}});
  }
};

TEST_F(SpareHostTest, HasThePlacesOfALostHost) {
  beat(500ms, {90, 95});
  EXPECT_EQ(last<wire::Places>(95), nullptr);
  beat(400ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  spare({{"2", 9, 1, true}});
  come(4, who("2", 9, 1, "host-9"));
  EXPECT_EQ(rank(4), 2);
}

// The end of the former connection is not known yet.
TEST_F(SpareHostTest, MayAskForThemOnANewConnection) {
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  tell(96, "agent-9", "host-9", {{"2", 9, 1, true}});
  EXPECT_EQ(last<wire::Refused>(96), nullptr);
  come(4, who("2", 9, 1, "host-9"));
  EXPECT_EQ(rank(4), 2);
}

TEST_F(SpareHostTest, IsAHeirNoMoreOnceItIsGoneAndSilent) {
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  step(Closed{95});
  tell(96, "agent-7", "host-7", {{"2", 9, 1, true}});
  EXPECT_EQ(granted(96), Nodes{}) << "the heir may come back";
  beat(900ms, {90, 96});
  step(Received{96, wire::AgentState{"job", "agent-7", "host-7", {}, wire::kProtocol, 1}});
  EXPECT_EQ(granted(96), Nodes{"2"});
}

// The agent may not have heard of the grant, or its table may be older.
TEST_F(SpareHostTest, IsToldAgainWhatItsTableLacks) {
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  said_.clear();
  step(Received{95, wire::AgentState{"job", "agent-9", "host-9", {}, wire::kProtocol, 2}});
  EXPECT_EQ(granted(95), Nodes{"2"});
}

// The grant was on record before it was said, so a restarted scheduler knows it.
TEST_F(SpareHostTest, IsTheHeirThroughARestartOfTheScheduler) {
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  tell(81, "agent-2", "host-2", {{"2", 3, 1, true}});
  come(82, who("2", 3, 1, "host-2"));
  EXPECT_EQ(granted(81), Nodes{});
  EXPECT_EQ(rank(82), kNoRank);
  step(Connected{85, wire::PeerKind::kAgent});
  step(Received{85, wire::AgentState{"job", "agent-9", "host-9", {}, wire::kProtocol, 2}});
  EXPECT_EQ(granted(85), Nodes{"2"});
  step(Received{85, wire::AgentState{"job", "agent-9", "host-9", {{"2", 9, 1, true}}}});
  come(14, who("2", 9, 1, "host-9"));
  EXPECT_EQ(rank(14), 2);
}

// Attempts are counted anew, though the place is where it was before.
TEST_F(SpareHostTest, AHostMayBeGivenItsPlaceAgain) {
  step(Received{91, wire::AgentState{"job", "agent-2", "host-2", {{"2", 5, 3, true}}}});
  come(4, who("2", 5, 3, "host-2"));
  report_all({1, 2, 4});
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  step(Received{91, wire::AgentState{"job", "agent-2", "host-2", {}, wire::kProtocol, 1}});
  beat(900ms, {90, 91});  // The spare host is lost before it has started anything.
  EXPECT_EQ(granted(91), Nodes{"2"});
  step(Received{91, wire::AgentState{"job", "agent-2", "host-2", {{"2", 7, 1, true}}}});
  come(6, who("2", 7, 1, "host-2"));
  EXPECT_EQ(rank(6), 2);
}

TEST_F(SpareHostTest, HasAlsoThePlaceOfAProcessThatWasLostBefore) {
  step(
      Received{91, wire::AgentState{"job",
                                    "agent-2",
                                    "host-2",
                                    {{"2", 3, 1, false, {wire::Ending::Kind::kSignalled, 9}, 5}}}});
  EXPECT_EQ(state("2"), SeatState::kDead);
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
}

// The spare host gets only rank 0 of lost host 1: another agent speaks for rank 1 already.
TEST_F(SpareHostTest, HasThePlacesOfALostHostThatNobodyElseSpeaksFor) {
  beat(900ms, {91});  // Host 1 is lost, and so is the spare host.
  EXPECT_EQ(state("0"), SeatState::kSilent);
  tell(92, "agent-3", "host-3", {{"1", 9, 2, true}});  // Somebody has started a process for rank 1.
  EXPECT_EQ(last<wire::Refused>(92), nullptr);
  step(Received{95, wire::Heartbeat{}});
  beat(200ms, {91, 92, 95});
  EXPECT_EQ(granted(95), Nodes{"0"});
}

// After the restart, the host that had the place before may be the first to speak.
TEST_F(SpareHostTest, KeepsItsPlacesThroughARestartOfTheScheduler) {
  beat(900ms, {90, 95});
  spare({{"2", 9, 1, true}});
  come(4, who("2", 9, 1, "host-9"));
  report_all({1, 2});
  step(Received{4, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  step(Received{4, wire::Repaired{machine_->generation()}});
  ASSERT_EQ(machine_->stage(), Stage::kRunning);
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  tell(81, "agent-2", "host-2", {{"2", 3, 2, true}});
  tell(85, "agent-9", "host-9", {{"2", 9, 1, true}});
  step(Received{85, wire::Heartbeat{}});
  EXPECT_EQ(last<wire::Refused>(85), nullptr);
  EXPECT_EQ(granted(81), Nodes{});
  come(14, who("2", 9, 1, "host-9"));
  EXPECT_EQ(rank(14), 2);
}

TEST_F(SpareHostTest, IsAskedOnce) {
  beat(2s, {90, 95});
  const auto& said = said_[95];
  EXPECT_EQ(std::count_if(said.begin(), said.end(),
                          [](const auto& m) { return std::holds_alternative<wire::Places>(m); }),
            1);
}

TEST_F(SpareHostTest, AHostThatComesBackAfterItsPlacesWereGivenAwayHasLostThem) {
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  tell(92, "agent-2", "host-2", {{"2", 3, 1, true}});
  EXPECT_EQ(last<wire::Refused>(92), nullptr);
  EXPECT_EQ(granted(92), Nodes{});
  step(Received{3, wire::Heartbeat{}});
  EXPECT_EQ(state("2"), SeatState::kDead);
  EXPECT_NE(last<wire::Refused>(3), nullptr);
}

// After the silence, a worker of the host speaks before the agent does.
TEST_F(SpareHostTest, AHostWhoseWorkerSpeaksAgainKeepsItsPlaces) {
  step(Closed{95});
  beat(900ms, {90});
  EXPECT_EQ(state("2"), SeatState::kSilent);
  step(Received{3, wire::Heartbeat{}});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  step(Connected{96, wire::PeerKind::kAgent});
  step(Received{96, wire::AgentState{"job", "agent-10", "host-10", {}, wire::kProtocol, 2}});
  EXPECT_EQ(last<wire::Places>(96), nullptr);
  beat(900ms, {90, 96});  // If the agent stays away, the host is lost all the same.
  EXPECT_EQ(granted(96), Nodes{"2"});
}

TEST_F(SpareHostTest, AHostThatComesBackBeforeThatKeepsItsPlaces) {
  step(Closed{95});
  beat(900ms, {90});
  EXPECT_EQ(state("2"), SeatState::kSilent);
  step(Received{91, wire::Heartbeat{}});
  step(Received{3, wire::Heartbeat{}});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  spare({});
  beat(500ms, {90, 91, 95});
  EXPECT_EQ(last<wire::Places>(95), nullptr);
}

// Then all processes are on the scheduler's own host, and hosts are no longer watched.
TEST_F(SpareHostTest, AHostThatComesBackToAJobOfOneHostIsASpareHost) {
  options_.own_agent = "agent-1";
  options_.own_host = "host-1";
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  const auto table = [&](std::vector<wire::PlaceState> places) {
    step(Received{
        90, wire::AgentState{"job", "agent-1", "host-1", std::move(places), wire::kProtocol, 3}});
  };
  table({{"0", 1, 1, true}, {"1", 2, 1, true}});
  come(1, who("0", 1, 1, "host-1"));
  come(2, who("1", 2, 1, "host-1"));
  beat(5s, {90});
  EXPECT_EQ(granted(90), (Nodes{"0", "1", "2"}));
  table({{"0", 1, 1, true}, {"1", 2, 1, true}, {"2", 9, 1, true}});
  come(4, who("2", 9, 1, "host-1"));
  tell(92, "agent-2", "host-2", {{"2", 3, 1, true}});
  EXPECT_EQ(granted(92), Nodes{});
}

TEST_F(SpareHostTest, AnotherOneIsAskedIfItIsLostToo) {
  beat(900ms, {90, 95});
  EXPECT_EQ(granted(95), Nodes{"2"});
  step(Closed{95});
  beat(900ms, {90});
  step(Connected{96, wire::PeerKind::kAgent});
  step(Received{96, wire::AgentState{"job", "agent-10", "host-10", {}, wire::kProtocol, 2}});
  EXPECT_EQ(granted(96), Nodes{"2"});
}

// The host is lost while no scheduler runs.
TEST_F(SpareHostTest, HasThePlacesOfAHostThatDoesNotComeBackToANewScheduler) {
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  tell(190, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}});
  come(101, who("0", 1, 1, "host-1"));
  come(102, who("1", 2, 1, "host-1"));
  step(Connected{195, wire::PeerKind::kAgent});
  step(Received{195, wire::AgentState{"job", "agent-9", "host-9", {}, wire::kProtocol, 2}});
  beat(2s, {190, 195});
  EXPECT_EQ(state("2"), SeatState::kHeld);
  beat(2s, {190, 195});
  EXPECT_EQ(last<wire::Places>(190), nullptr);
  EXPECT_EQ(granted(195), Nodes{"2"});
  EXPECT_EQ(state("0"), SeatState::kHeld);
}

TEST_F(SpareHostTest, OneThatIsTooSmallIsNotAsked) {
  step(Received{95, wire::AgentState{"job", "agent-9", "host-9", {}, wire::kProtocol, 1}});
  beat(900ms, {91, 95});  // Host 1 is lost, which has two places.
  EXPECT_EQ(last<wire::Places>(95), nullptr);
}

// A person asks that host 2's rank move to the spare host on link 95.
class MoveTest : public SpareHostTest {
 protected:
  void SetUp() override {
    SpareHostTest::SetUp();
    for (Link link = 1; link <= 3; ++link) {  // All ranks make a step.
      step(Received{link, wire::Progress{machine_->generation(), first_}});
    }
  }
  // The observer on link 70 asks for the move.
  void ask(const std::string& from, const std::string& to = "", bool drains = false) {
    if (!machine_->peers().contains(70)) step(Connected{70, wire::PeerKind::kObserver});
    step(Received{70, wire::Move{from, to, drains}});
  }
  [[nodiscard]] wire::Reason answer() const {
    const auto* moved = last<wire::Moved>(70);
    return moved ? moved->reason : wire::Reason{};
  }
  // `held`: host 1 has a copy of the private part of host 2's rank.
  void report_with_holder(bool held) {
    for (const Link link : std::initializer_list<Link>{1, 2, 3}) {
      wire::Report report{machine_->generation(), 4, 4, true, {}};
      if (link == 1 && held) report.held = {{2, 4, 4}};
      step(Received{link, report});
    }
  }
};

TEST_F(MoveTest, StopsAllAndGivesThePlacesOnceTheyAreKnownToBeElsewhere) {
  ask("host-2");
  EXPECT_EQ(machine_->stage(), Stage::kStopping);
  EXPECT_EQ(machine_->head().cause.kind, Reason::Kind::kMoves);
  EXPECT_EQ(last<wire::Places>(95), nullptr);
  report_with_holder(true);
  EXPECT_EQ(
      answer(),
      (Reason{.kind = Reason::Kind::kMoves, .count = 1, .host = "host-2", .other_host = "host-9"}));
  ASSERT_EQ(granted(91), Nodes{});
  EXPECT_FALSE(last<wire::Places>(91)->drains);
  EXPECT_EQ(granted(95), Nodes{"2"});
  const Generation generation = machine_->generation();
  spare({{"2", 9, 1, true}});
  come(4, who("2", 9, 1, "host-9"));
  step(Received{4, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  EXPECT_EQ(at(Stage::kRepairing, 4)->version, 4U);
  step(Received{4, wire::Repaired{machine_->generation()}});
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  EXPECT_EQ(machine_->generation(), generation) << "one stop for all of it";
}

// The rank that moves has committed a step, and those that stay have only staged it.
TEST_F(MoveTest, KeepsTheStepThatOnlyThoseHaveCommittedWhoMove) {
  ask("host-2");
  const Generation generation = machine_->generation();
  step(Received{1, wire::Report{generation, 4, 5, true, {{2, 4, 5}}}});
  step(Received{2, wire::Report{generation, 4, 5, true, {}}});
  step(Received{3, wire::Report{generation, 5, 5, true, {}}});
  EXPECT_EQ(answer().kind, Reason::Kind::kMoves);
  ASSERT_EQ(granted(95), Nodes{"2"});
  spare({{"2", 9, 1, true}});
  come(4, who("2", 9, 1, "host-9"));
  step(Received{4, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  EXPECT_EQ(machine_->head().version, 5U);
}

TEST_F(MoveTest, CanNotTakePlaceIfNobodyElseHasTheState) {
  ask("host-2");
  report_with_holder(false);
  EXPECT_EQ(answer(), (Reason{.kind = Reason::Kind::kNotHeld, .rank = 2}));
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  EXPECT_EQ(last<wire::Places>(95), nullptr);
  EXPECT_EQ(state("2"), SeatState::kHeld);
}

// This holds for version 0, too: making it anew would not keep the state.
class MoveAtFirstTest : public MoveTest {
 protected:
  MoveAtFirstTest() { first_ = 0; }
};

TEST_F(MoveAtFirstTest, CanNotTakeTheOnlyCopy) {
  ask("host-2");
  for (const Link link : std::initializer_list<Link>{1, 2, 3}) {
    const Version version = link == 3 ? 0 : kNoVersion;
    step(Received{link, wire::Report{machine_->generation(), version, version}});
  }
  EXPECT_EQ(answer().kind, Reason::Kind::kNotHeld);
  EXPECT_EQ(last<wire::Places>(95), nullptr);
}

TEST_F(MoveTest, IsRefusedAtOnceWhereItCanNotBe) {
  ask("host-7");
  EXPECT_EQ(answer().kind, Reason::Kind::kNoSuchHost);
  ask("host-2", "host-1");
  EXPECT_EQ(answer().kind, Reason::Kind::kNobodyTakes);
  ask("host-9");  // This host has no ranks.
  EXPECT_EQ(answer().kind, Reason::Kind::kNoSuchHost);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  ask("host-2", "host-9");
  ask("host-1");  // Only one move at a time is made.
  EXPECT_EQ(answer().kind, Reason::Kind::kNotNow);
}

TEST_F(MoveTest, IsNotMadeIfItsHeirIsLostMeanwhile) {
  ask("host-2");
  step(Closed{95});
  report_with_holder(true);
  EXPECT_EQ(answer().kind, Reason::Kind::kNotNow);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  EXPECT_EQ(state("2"), SeatState::kHeld);
}

TEST_F(MoveTest, ADrainedHostIsTold) {
  ask("host-2", "", true);
  report_with_holder(true);
  ASSERT_EQ(granted(91), Nodes{});
  EXPECT_TRUE(last<wire::Places>(91)->drains);
}

TEST_F(MoveTest, ASpareHostMayBeDrained) {
  ask("host-9", "", true);
  EXPECT_EQ(answer().kind, Reason::Kind::kMoves);
  ASSERT_NE(last<wire::Places>(95), nullptr);
  EXPECT_TRUE(last<wire::Places>(95)->drains);
}

TEST_F(MoveTest, AnyNumberOfHostsMayBeDrained) {
  for (Link link = 200; link < 240; ++link) {
    const std::string number = cat(link);
    step(Received{link, wire::AgentState{
                            "job", "agent-" + number, "host-" + number, {}, wire::kProtocol, 2}});
    ask("host-" + number, "", true);
    EXPECT_EQ(answer().kind, Reason::Kind::kMoves);
  }
  EXPECT_EQ(record_.drained.size(), 40U);
}

// A host that got a lost host's rank gives it to a host that comes, once all ranks have made a
// step.
TEST_F(MoveTest, RanksLeaveAnOversubscribedHostOnceAnotherComes) {
  step(Closed{95});
  const auto table = [&](std::vector<wire::PlaceState> places) {
    step(Received{
        90, wire::AgentState{"job", "agent-1", "host-1", std::move(places), wire::kProtocol, 3}});
  };
  table({{"0", 1, 1, true}, {"1", 2, 1, true}});
  beat(900ms, {90});  // Host 2 is lost.
  EXPECT_EQ(granted(90), (Nodes{"0", "1", "2"}));
  table({{"0", 1, 1, true}, {"1", 2, 1, true}, {"2", 9, 1, true}});
  come(4, who("2", 9, 1, "host-1"));
  report_all({1, 2});
  step(Received{4, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  step(Received{4, wire::Repaired{machine_->generation()}});
  ASSERT_EQ(machine_->stage(), Stage::kRunning);
  step(Connected{96, wire::PeerKind::kAgent});
  step(Received{96, wire::AgentState{"job", "agent-7", "host-7", {}, wire::kProtocol, 1}});
  EXPECT_EQ(machine_->stage(), Stage::kRunning) << "not before they have made a step";
  for (const Link link : std::initializer_list<Link>{1, 2, 4}) {
    step(Received{link, wire::Progress{machine_->generation(), 5}});
  }
  EXPECT_EQ(machine_->stage(), Stage::kStopping);
  for (const Link link : std::initializer_list<Link>{1, 2, 4}) {
    step(Received{link, wire::Report{machine_->generation(), 5, 5}});
  }
  EXPECT_EQ(granted(96), Nodes{"2"});
  EXPECT_EQ(granted(90), (Nodes{"0", "1"}));
  // All processes are on host 1. Even so, the heir's loss before it has begun is noticed.
  table({{"0", 1, 1, true}, {"1", 2, 1, true}});
  said_.clear();
  step(Closed{96});
  beat(900ms, {90});
  EXPECT_EQ(granted(90), (Nodes{"0", "1", "2"}));
}

// Nothing moves back to a host from which a person has moved it.
TEST_F(MoveTest, RanksDoNotLeaveTheHostThatTheyWereMovedTo) {
  step(Closed{95});
  step(Received{
      90,
      wire::AgentState{
          "job", "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}}, wire::kProtocol, 3}});
  ask("host-2", "host-1");
  report_with_holder(true);
  EXPECT_EQ(granted(90), (Nodes{"0", "1", "2"}));
  step(Received{90, wire::AgentState{"job",
                                     "agent-1",
                                     "host-1",
                                     {{"0", 1, 1, true}, {"1", 2, 1, true}, {"2", 9, 1, true}},
                                     wire::kProtocol,
                                     2}});
  step(Received{91, wire::AgentState{"job", "agent-2", "host-2", {}, wire::kProtocol, 1}});
  come(4, who("2", 9, 1, "host-1"));
  step(Received{4, wire::Report{machine_->generation(), kNoVersion, kNoVersion}});
  step(Received{4, wire::Repaired{machine_->generation()}});
  ASSERT_EQ(machine_->stage(), Stage::kRunning);
  for (const Link link : std::initializer_list<Link>{1, 2, 4}) {
    step(Received{link, wire::Progress{machine_->generation(), 5}});
  }
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
}

// The message that the host is drained may be lost, and then the scheduler, too.
TEST_F(MoveTest, ADrainedHostIsToldAgainAndTakesNothing) {
  ask("host-2", "", true);
  report_with_holder(true);
  ASSERT_EQ(answer().kind, Reason::Kind::kMoves);
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  tell(81, "agent-2", "host-2", {{"2", 3, 1, true}});
  ASSERT_EQ(granted(81), Nodes{});
  EXPECT_TRUE(last<wire::Places>(81)->drains);
  step(Received{81, wire::AgentState{"job", "agent-2", "host-2", {}, wire::kProtocol, 1}});
  beat(5s, {81});  // All other hosts are lost.
  EXPECT_EQ(granted(81), Nodes{});
}

// A second agent of the host, without places, may leave or come back meanwhile.
TEST_F(MoveTest, ConcernsAllAgentsOfAHostThoughOneLeaves) {
  step(Received{96, wire::AgentState{"job", "agent-7", "host-2", {}, wire::kProtocol, 1}});
  ask("host-2", "", true);
  step(Closed{96});
  report_with_holder(true);
  EXPECT_EQ(answer().kind, Reason::Kind::kMoves);
  EXPECT_EQ(granted(95), Nodes{"2"});
}

TEST_F(MoveTest, AHostThatOnlyAsksForPlacesMayBeDrained) {
  tell(93, "agent-3", "host-3", {{"2", 9, 1, true}});
  EXPECT_EQ(last<wire::Places>(93), nullptr);
  ask("host-3", "", true);
  EXPECT_EQ(answer().kind, Reason::Kind::kMoves);
  EXPECT_EQ(granted(93), Nodes{});
  EXPECT_TRUE(last<wire::Places>(93)->drains);
}

// Nobody is told what is not on record yet.
TEST_F(MoveTest, IsOnRecordBeforeAnybodyHearsOfIt) {
  ask("host-2");
  for (const Link link : std::initializer_list<Link>{1, 2}) {
    step(Received{link, wire::Report{machine_->generation(), 4, 4}});
  }
  const auto actions =
      machine_->step(now_, Received{3, wire::Report{machine_->generation(), 4, 4}});
  ASSERT_FALSE(actions.empty());
  EXPECT_TRUE(std::holds_alternative<Store>(actions.back()));
  for (const auto& action : actions) {
    EXPECT_FALSE(std::holds_alternative<Send>(action));
    EXPECT_FALSE(std::holds_alternative<Close>(action));
  }
}

TEST_F(MoveTest, IsForgottenWithWhoHasAskedForIt) {
  ask("host-2");
  step(Closed{70});
  report_with_holder(true);
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  EXPECT_EQ(last<wire::Places>(95), nullptr);
}

// A rank that has ended may have left, and with it the state that others would copy.
TEST_F(MoveTest, IsNotMadeOnceARankHasEnded) {
  step(Received{1, wire::Finished{machine_->generation(), 4}});
  ask("host-2");
  EXPECT_EQ(answer().kind, Reason::Kind::kNotNow);
}

// Places that nobody has taken up yet may be another host's, though all processes are on one host.
TEST_F(MoveTest, AHostThatIsLostBeforeItHasBegunIsMissed) {
  options_.own_agent = "agent-1";
  options_.own_host = "host-1";
  ask("host-2");
  report_with_holder(true);
  EXPECT_EQ(granted(95), Nodes{"2"});
  machine_.emplace(options_, record_);
  said_.clear();
  step(Started{});
  tell(90, "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}});
  step(Received{
      90,
      wire::AgentState{
          "job", "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}}, wire::kProtocol, 3}});
  beat(5s, {90});  // Neither the heir nor the former host comes back.
  EXPECT_EQ(granted(90), (Nodes{"0", "1", "2"}));
}

}  // namespace
}  // namespace holdfast::controller
