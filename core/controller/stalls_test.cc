// Which rank holds up the others, and when its agent is to end it.
#include "core/controller/stalls.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using namespace std::chrono_literals;
using wire::Reason;
using wire::Stage;

// Ranks 0 and 1 are on host-1, rank 2 is on host-2.
class StallsTest : public HostsTest {
 protected:
  [[nodiscard]] wire::StandingState at(const std::string& node, std::uint64_t operations,
                                       const std::string& report = {}) const {
    return {node, machine_->generation(), operations, 4, Doing::kComputing, true, for_ms_, report};
  }
  void stand(std::vector<wire::StandingState> on_1, std::vector<wire::StandingState> on_2) {
    wire::AgentState state{"job", "agent-1", "host-1", {{"0", 1, 1, true}, {"1", 2, 1, true}}};
    state.standing = std::move(on_1);
    step(Received{90, state});
    state = {"job", "agent-2", "host-2", {{"2", 3, 1, true}}};
    state.standing = std::move(on_2);
    step(Received{91, state});
  }
  // Begins anew, with this limit.
  void limit_to(Duration limit) {
    options_.hang_timeout = limit;
    said_.clear();
    SetUp();
  }
  void all_live(Duration time) { beat(time, {1, 2, 3, 90, 91}); }
  std::uint32_t for_ms_ = 1000;
  // All that the first agent was told of ranks that hold up others.
  [[nodiscard]] std::vector<Reason> named() const {
    std::vector<Reason> all;
    const auto said = said_.find(90);
    if (said == said_.end()) return all;
    for (const auto& message : said->second) {
      const auto* waiting = std::get_if<wire::Waiting>(&message);
      const bool holds = waiting != nullptr && waiting->reason.kind == Reason::Kind::kHoldsUp;
      if (holds) all.push_back(waiting->reason);
    }
    return all;
  }
};

TEST_F(StallsTest, WhoStandsAtTheEarliestOperationHoldsUpTheOthers) {
  stand({at("0", 8), at("1", 8)}, {at("2", 7)});
  beat(100ms, {90, 91});
  ASSERT_NE(last<wire::Inspect>(91), nullptr);
  EXPECT_EQ(*last<wire::Inspect>(91), (wire::Inspect{"2", 3}));
  EXPECT_EQ(last<wire::Inspect>(90), nullptr);
  EXPECT_TRUE(named().empty()) << "it is to be found out first what it does";
  stand({at("0", 8), at("1", 8)}, {at("2", 7, "it spins")});
  beat(100ms, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  const Reason why = named()[0];
  EXPECT_EQ(why.rank, 2);
  EXPECT_EQ(why.host, "host-2");
  EXPECT_EQ(why.total, 2);
  EXPECT_EQ(why.doing, Doing::kComputing);
  EXPECT_EQ(why.detail, "it spins");
  EXPECT_GE(why.count, 1000);
  EXPECT_LE(why.count, 1500);
  EXPECT_EQ(machine_->held_up_by().size(), 1U);
  beat(20s, {90, 91});
  EXPECT_EQ(named().size(), 1U) << "it is named once";
  EXPECT_EQ(last<wire::Evict>(91), nullptr) << "nobody has asked for that";
}

// Found by tests/chaos/drills.py: all had ended the sums, and one hung before it gave its part.
TEST_F(StallsTest, WhoExchangesPrivatePartsWaitsForWhoHasNotComeThere) {
  limit_to(1500ms);
  auto exchanging = at("1", 7);
  exchanging.doing = Doing::kCopying;
  auto hung = at("2", 7);
  hung.doing = Doing::kSumming;
  stand({at("0", 8), exchanging}, {hung});
  beat(2s, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  EXPECT_EQ(named()[0].rank, 2);
  EXPECT_EQ(named()[0].total, 2);
  ASSERT_NE(last<wire::Evict>(91), nullptr);
  EXPECT_EQ(*last<wire::Evict>(91), (wire::Evict{"2", 3, true}));
  EXPECT_EQ(last<wire::Evict>(90), nullptr);
}

TEST_F(StallsTest, TheLastOneOfAllIsNamedAfterAMinute) {
  stand({at("0", 8), at("1", 8)}, {});
  step(Received{3, wire::Finished{machine_->generation(), 4}});
  all_live(50s);
  EXPECT_TRUE(named().empty());
  all_live(12s);
  ASSERT_EQ(named().size(), 2U);
  EXPECT_EQ(named()[0].total, 1);
}

TEST_F(StallsTest, AnAgentThatDoesNotAnswerIsNotWaitedForLong) {
  stand({at("0", 8), at("1", 8)}, {at("2", 7)});
  beat(kGather + kInspection + 100ms, {90, 91});
  EXPECT_EQ(named().size(), 1U);
}

TEST_F(StallsTest, NobodyIsNamedWhileAllDoTheSame) {
  stand({at("0", 8), at("1", 8)}, {at("2", 8)});
  beat(10s, {90, 91});
  EXPECT_EQ(last<wire::Inspect>(91), nullptr);
  EXPECT_TRUE(named().empty());
}

TEST_F(StallsTest, WhoIsInAnExchangeOfSomeRanksWaitsForThoseWhoAreInNone) {
  auto first = at("0", 8);
  auto last = at("2", 8);
  first.exchanges = last.exchanges = true;
  stand({first, at("1", 8, "it spins")}, {last});
  beat(100ms, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  EXPECT_EQ(named()[0].rank, 1);
  EXPECT_EQ(named()[0].total, 2);
}

TEST_F(StallsTest, WhoIsInAnExchangeWaitsForARankThatIsNotThereYet) {
  auto first = at("0", 7);
  first.exchanges = true;
  stand({first, at("1", 7, "it spins")}, {at("2", 8)});
  beat(100ms, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  EXPECT_EQ(named()[0].rank, 1);
  EXPECT_EQ(named()[0].total, 2);
}

TEST_F(StallsTest, RanksThatWaitForEachOtherAreNamedAfterTenSecondsAndNotEnded) {
  limit_to(2s);
  std::vector waiting = {at("0", 8, "it waits"), at("1", 8, "it waits"), at("2", 8, "it waits")};
  for (auto& rank : waiting) rank.exchanges = true;
  stand({waiting[0], waiting[1]}, {waiting[2]});
  beat(kExchange - 1100ms, {90, 91});
  EXPECT_TRUE(named().empty()) << "much may be on its way";
  beat(200ms, {90, 91});
  ASSERT_EQ(named().size(), 3U);
  EXPECT_EQ(named()[0].total, 0);
  all_live(20s);
  EXPECT_EQ(last<wire::Evict>(90), nullptr);
  EXPECT_EQ(last<wire::Evict>(91), nullptr);
}

// Who is in an exchange of some ranks is not known: it may wait for one that goes on.
TEST_F(StallsTest, AnExchangeBlamesNobodyUnlessAllRanksStand) {
  auto first = at("0", 8);
  first.exchanges = true;
  stand({first}, {});
  all_live(20s);
  EXPECT_TRUE(named().empty()) << "ranks 1 and 2 go on";
  stand({first}, {at("2", 8, "it writes a checkpoint")});
  all_live(20s);
  EXPECT_TRUE(named().empty()) << "rank 0 may wait for rank 1, which goes on";
  first.operations = 7;
  stand({first}, {at("2", 8)});
  all_live(20s);
  EXPECT_TRUE(named().empty()) << "rank 2 waits for rank 0, and that one for rank 1";
}

TEST_F(StallsTest, OneThatWaitsItselfIsNeverEnded) {
  limit_to(5s);
  auto first = at("0", 7, "it waits");
  auto other = at("1", 7, "it waits");
  first.exchanges = other.exchanges = true;
  stand({first, other}, {at("2", 8)});
  all_live(20s);
  EXPECT_EQ(named().size(), 2U);
  EXPECT_EQ(last<wire::Evict>(90), nullptr);
}

TEST_F(StallsTest, AWaitForOneIsNoLongerWaitThanTheOneForAll) {
  limit_to(10s);
  auto waiting = std::vector{at("0", 8), at("1", 8), at("2", 8, "it waits")};
  for (auto& rank : waiting) rank.exchanges = true;
  stand({waiting[0], waiting[1]}, {waiting[2]});
  all_live(8s);
  for_ms_ = 0;
  stand({at("0", 9), at("1", 9)}, {at("2", 8, "it spins")});
  all_live(8s);
  EXPECT_EQ(last<wire::Evict>(91), nullptr) << "the others have come 8 s ago";
  all_live(4s);
  EXPECT_NE(last<wire::Evict>(91), nullptr);
}

TEST_F(StallsTest, ThePlacesOfOthersDoNotCount) {
  stand({at("0", 8), at("1", 8), at("2", 7)}, {});
  beat(10s, {90, 91});
  EXPECT_TRUE(named().empty());
}

// Rank 2, on host-2, is a parameter server.
class ServerStallsTest : public StallsTest {
 protected:
  void SetUp() override {
    options_.servers = 1;
    StallsTest::SetUp();
  }
  // Waits for the workers in an exchange, or at the commit barrier.
  [[nodiscard]] wire::StandingState idle(bool has_arrived = false) const {
    auto state = at("2", 0);
    state.exchanges = !has_arrived;
    if (has_arrived) state.doing = Doing::kCommitting;
    return state;
  }
};

TEST_F(ServerStallsTest, AWorkerThatHasNotComeIsNamedAndTheIdleServerIsNot) {
  limit_to(5s);
  for (const bool has_arrived : {false, true}) {
    SetUp();
    said_.clear();
    stand({at("0", 8), at("1", 7, "it spins")}, {idle(has_arrived)});
    all_live(8s);
    ASSERT_EQ(named().size(), 1U);
    EXPECT_EQ(named()[0].rank, 1);
    EXPECT_EQ(last<wire::Evict>(91), nullptr);
    ASSERT_NE(last<wire::Evict>(90), nullptr);
    EXPECT_EQ(last<wire::Evict>(90)->node_id, "1");
  }
}

TEST_F(ServerStallsTest, NobodyIsNamedForAServerThatWaitsForWorkersThatGoOn) {
  stand({at("0", 8)}, {idle()});
  all_live(20s);
  EXPECT_TRUE(named().empty());
}

TEST_F(ServerStallsTest, AServerThatStandsElsewhereIsNamed) {
  stand({at("0", 8), at("1", 8)}, {at("2", 0, "it spins")});
  all_live(2s);
  ASSERT_EQ(named().size(), 1U);
  EXPECT_EQ(named()[0].rank, 2);
  EXPECT_EQ(named()[0].total, 2);
}

TEST_F(ServerStallsTest, AServerInAnOldGenerationIsNoIdleOne) {
  const auto old = idle();
  step(Received{
      90, wire::AgentState{"job", "agent-1", "host-1", {{"0", 4, 2, true}, {"1", 2, 1, true}}}});
  come(4, who("0", 4, 2, "host-1"));
  ASSERT_EQ(machine_->stage(), Stage::kStopping);
  wire::AgentState state{"job", "agent-2", "host-2", {{"2", 3, 1, true}}};
  state.standing = {old};
  step(Received{91, state});
  beat(2s, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  EXPECT_EQ(named()[0].rank, 2);
}

TEST_F(StallsTest, WhoStandsInAnOldGenerationHoldsUpTheRecovery) {
  auto old = at("2", 9, "it spins");
  step(Received{
      90, wire::AgentState{"job", "agent-1", "host-1", {{"0", 4, 2, true}, {"1", 2, 1, true}}}});
  come(4, who("0", 4, 2, "host-1"));
  ASSERT_EQ(machine_->stage(), Stage::kStopping);
  wire::AgentState state{"job", "agent-2", "host-2", {{"2", 3, 1, true}}};
  state.standing = {old};
  ASSERT_EQ(old.generation + 1, machine_->generation());
  step(Received{91, state});
  beat(2s, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  EXPECT_EQ(named()[0].rank, 2);
  EXPECT_EQ(named()[0].total, 2);
}

TEST_F(StallsTest, AWaitThatEndedByItselfIsNamedAgainOnlyIfItTakesTwiceAsLong) {
  stand({at("0", 8), at("1", 8)}, {at("2", 7, "it evaluates")});
  beat(4s, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  stand({}, {});
  beat(1s, {90, 91});
  EXPECT_TRUE(machine_->held_up_by().empty());
  stand({at("0", 18), at("1", 18)}, {at("2", 17, "it evaluates")});
  beat(5s, {90, 91});
  EXPECT_EQ(named().size(), 1U);
  beat(6s, {90, 91});
  EXPECT_EQ(named().size(), 2U);
}

TEST_F(StallsTest, WhoHasToldOfANewerStepSinceDoesNotStand) {
  step(Received{3, wire::Progress{machine_->generation(), 5, 0}});
  stand({at("0", 8), at("1", 8)}, {at("2", 7)});  // At version 4: an old word.
  beat(10s, {90, 91});
  EXPECT_TRUE(named().empty());
}

TEST_F(StallsTest, TheOthersWaitOnlyFromWhenTheyHaveCome) {
  for_ms_ = 60'000;
  auto late = at("2", 7);
  for_ms_ = 1000;
  stand({at("0", 8), at("1", 8)}, {late});
  beat(1s, {90, 91});
  ASSERT_EQ(named().size(), 1U);
  EXPECT_LE(named()[0].count, 2500);
}

TEST_F(StallsTest, AfterTheLimitItsAgentEndsIt) {
  limit_to(5s);
  stand({at("0", 8), at("1", 8)}, {at("2", 7, "it spins")});
  beat(3500ms, {90, 91});
  EXPECT_EQ(last<wire::Evict>(91), nullptr);
  beat(1s, {90, 91});
  ASSERT_NE(last<wire::Evict>(91), nullptr);
  EXPECT_EQ(*last<wire::Evict>(91), (wire::Evict{"2", 3, true}));
  EXPECT_EQ(named()[0].other, "5");
  // Its agent comes back on another connection: the order may be lost.
  step(Closed{91});
  tell(92, "agent-2", "host-2", {{"2", 3, 1, true}});
  wire::AgentState again{"job", "agent-2", "host-2", {{"2", 3, 1, true}}};
  again.standing = {at("2", 7, "it spins")};
  step(Received{92, again});
  beat(1s, {90, 92});
  EXPECT_NE(last<wire::Evict>(92), nullptr);
}

class LoneStallsTest : public StallsTest {
 protected:
  void SetUp() override {
    options_.world_size = 1;
    machine_.emplace(options_, std::nullopt);
    step(Started{});
    tell(90, "agent-1", "host-1", {{"0", 1, 1, true}});
    come(1, who("0", 1, 1, "host-1"));
    step(Received{1, wire::Report{machine_->generation(), first_, first_}});
    ASSERT_EQ(machine_->stage(), Stage::kRunning);
  }
  void stand_alone() {
    wire::AgentState state{"job", "agent-1", "host-1", {{"0", 1, 1, true}}};
    state.standing = {at("0", 8, "it spins")};
    step(Received{90, state});
  }
};

// Nobody waits for it but its user.
TEST_F(LoneStallsTest, TheOnlyRankIsNamedAfterHalfAMinuteAndNeverEnded) {
  limit_to(5s);
  stand_alone();
  beat(kLone - 1100ms, {1, 90});
  EXPECT_TRUE(named().empty());
  beat(500ms, {1, 90});
  ASSERT_EQ(named().size(), 1U);
  EXPECT_EQ(named()[0].total, -1);
  beat(60s, {1, 90});
  EXPECT_EQ(last<wire::Evict>(90), nullptr);
}

TEST_F(StallsTest, NobodyIsEndedBeforeItsFirstStepOrIfItIsNotAlone) {
  limit_to(5s);
  auto first = at("2", 7, "it compiles");
  first.has_stepped = false;
  stand({at("0", 8), at("1", 8)}, {first});
  beat(10s, {90, 91});
  EXPECT_EQ(named().size(), 1U);
  EXPECT_EQ(last<wire::Evict>(91), nullptr);
  limit_to(5s);
  stand({at("0", 18), at("1", 17)}, {at("2", 17)});
  beat(10s, {90, 91});
  EXPECT_EQ(named().size(), 2U);
  EXPECT_EQ(last<wire::Evict>(90), nullptr);
  EXPECT_EQ(last<wire::Evict>(91), nullptr);
}

TEST_F(StallsTest, NobodyHoldsUpAJobThatIsPaused) {
  limit_to(5s);
  step(Connected{kObserver, wire::PeerKind::kObserver});
  step(Received{kObserver, wire::Pause{.on = true}});
  stand({at("0", 8), at("1", 8)}, {at("2", 7)});
  all_live(10s);
  EXPECT_TRUE(named().empty());
  EXPECT_TRUE(machine_->held_up_by().empty());
  EXPECT_EQ(last<wire::Evict>(91), nullptr);
  // What they waited until then does not count.
  for_ms_ = 10'000;
  step(Received{kObserver, wire::Pause{}});
  stand({at("0", 8), at("1", 8)}, {at("2", 7, "it spins")});
  all_live(900ms);
  EXPECT_TRUE(named().empty());
  all_live(1s);
  ASSERT_EQ(named().size(), 1U);
  EXPECT_LT(named()[0].count, 1000);
  EXPECT_EQ(last<wire::Evict>(91), nullptr);
  all_live(5s);
  EXPECT_NE(last<wire::Evict>(91), nullptr);
}

}  // namespace
}  // namespace holdfast::controller
