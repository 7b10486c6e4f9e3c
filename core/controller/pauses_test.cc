// A job is paused by a user's order, and goes on.
#include "core/controller/pauses.h"

#include <gtest/gtest.h>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;
using Kind = Reason::Kind;

namespace {

using std::chrono::seconds;

// Ranks 0, 1 and 2 are on links 1, 2 and 3, and their agent is on link 90.
class PausesTest : public ControllerTest {
 protected:
  void SetUp() override {
    step(Received{90, agent_of_all()});
    for (Link link = 1; link <= 3; ++link) come(link, who(cat(link - 1), 10, 1));
    for (Link link = 1; link <= 3; ++link) report(link);
    ASSERT_EQ(machine_->stage(), Stage::kRunning);
  }
  static wire::AgentState agent_of_all() {
    wire::AgentState all{.job = "job", .agent_id = "agent", .host = "host"};
    for (Rank rank = 0; rank < 3; ++rank) all.places.push_back({cat(rank), 10, 1, true});
    return all;
  }
  void order(bool on) {
    if (!machine_->peers().contains(kObserver)) {
      step(Connected{kObserver, wire::PeerKind::kObserver});
    }
    said_[kObserver].clear();
    step(Received{kObserver, wire::Pause{.on = on}});
  }
  // Rank 0 says that it stands still by this order.
  void stand_still(std::uint64_t pauses, Version version = 4) {
    step(Received{1, wire::Pause{true, pauses, version}});
  }
  Reason answer() {
    const auto* paused = last<wire::Paused>(kObserver);
    return paused == nullptr ? Reason{} : paused->reason;
  }
  // The remarks about pauses of which users were told.
  std::vector<Kind> told() {
    std::vector<Kind> all;
    for (const auto& one : remarks_) all.push_back(one.what.kind);
    return all;
  }
  void take_over() {
    said_.clear();
    machine_.emplace(options_, record_);
    step(Started{{}, {}, remarks_});
    step(Received{90, agent_of_all()});
    for (Link link = 1; link <= 3; ++link) come(link, who(cat(link - 1), 10, 1));
  }
};

TEST_F(PausesTest, AllRanksAreToldAndOneThatStandsStillIsEnough) {
  order(true);
  EXPECT_EQ(record_.pauses, 1U);
  for (Link link = 1; link <= 3; ++link) {
    EXPECT_EQ(at(Stage::kRunning, link)->pauses, 1U);
    EXPECT_EQ(at(Stage::kRunning, link)->generation, 1U);
  }
  EXPECT_TRUE(last<wire::Pause>(90)->on);
  EXPECT_EQ(answer(), Reason{}) << "nobody knows yet that it stands still";
  EXPECT_FALSE(machine_->stands_still());
  stand_still(1);
  EXPECT_TRUE(machine_->stands_still());
  EXPECT_EQ(answer(), (Reason{.kind = Kind::kPaused, .version = 4}));
  EXPECT_EQ(last<wire::Waiting>(90)->reason, answer());
  order(true);
  EXPECT_EQ(answer(), (Reason{.kind = Kind::kPaused, .count = 1, .version = 4}));
  EXPECT_EQ(record_.pauses, 1U);
  order(false);
  EXPECT_EQ(answer(), (Reason{.kind = Kind::kUnpaused}));
  EXPECT_EQ(record_.pauses, 2U);
  for (Link link = 1; link <= 3; ++link) EXPECT_EQ(at(Stage::kRunning, link)->pauses, 2U);
  EXPECT_FALSE(last<wire::Pause>(90)->on);
  order(false);
  EXPECT_EQ(answer(), (Reason{.kind = Kind::kUnpaused, .count = 1}));
  EXPECT_EQ(record_.pauses, 2U);
  EXPECT_EQ(told(), (std::vector{Kind::kPaused, Kind::kUnpaused}));
}

TEST_F(PausesTest, AWordOfAnEarlierOrderDoesNotCount) {
  order(true);
  order(false);
  order(true);
  stand_still(1);
  EXPECT_FALSE(machine_->stands_still()) << "the rank may have gone on since";
  stand_still(3);
  EXPECT_TRUE(machine_->stands_still());
}

TEST_F(PausesTest, WhoAsksHearsInTimeThatItDoesNotStandStillYet) {
  order(true);
  pass(now_ + Pauses::kPatience - seconds(1));
  EXPECT_EQ(answer(), Reason{});
  pass(now_ + seconds(1));
  EXPECT_EQ(answer().kind, Kind::kPausing);
  EXPECT_EQ(record_.pauses, 1U) << "the order stands";
  order(true);
  EXPECT_EQ(answer(), Reason{}) << "it waits again";
  order(false);
  EXPECT_EQ(answer().kind, Kind::kUnpaused);
  EXPECT_TRUE(told().empty()) << "it never stood still";
}

TEST_F(PausesTest, BeforeTheRanksAreGivenItIsOrderedAsWell) {
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  order(true);
  pass(now_ + Pauses::kPatience);
  EXPECT_EQ(answer().kind, Kind::kPausing);
  SetUp();
  EXPECT_EQ(at(Stage::kRunning, 1)->pauses, 1U);
}

TEST_F(PausesTest, ASuccessorIsHeldLikeTheOthers) {
  order(true);
  stand_still(1);
  auto state = agent_of_all();
  state.places[2] = {"2", 11, 2, true};
  step(Received{90, state});
  come(4, who("2", 11, 2));
  ASSERT_EQ(machine_->stage(), Stage::kStopping);
  for (const Link link : {1U, 2U, 4U}) report(link);
  for (const Link link : {1U, 2U, 4U}) {
    EXPECT_EQ(at(Stage::kRunning, link)->generation, 2U);
    EXPECT_EQ(at(Stage::kRunning, link)->pauses, 1U);
  }
  EXPECT_TRUE(machine_->stands_still()) << "none of them comes to a barrier";
}

TEST_F(PausesTest, ASchedulerThatTakesOverKnowsIt) {
  order(true);
  stand_still(1);
  take_over();
  for (Link link = 1; link <= 3; ++link) EXPECT_EQ(at(Stage::kRunning, link)->pauses, 1U);
  EXPECT_TRUE(last<wire::Pause>(90)->on);
  EXPECT_FALSE(machine_->stands_still());
  stand_still(1);
  EXPECT_TRUE(machine_->stands_still());
  EXPECT_EQ(told(), std::vector{Kind::kPaused}) << "users were told once";
  order(false);
  take_over();
  EXPECT_EQ(at(Stage::kRunning, 1)->pauses, 2U);
  EXPECT_EQ(last<wire::Pause>(90), nullptr);
}

TEST_F(PausesTest, AnAgentThatIsToEndHasTheJobGoOn) {
  order(true);
  step(Connected{95, wire::PeerKind::kAgent});
  step(Received{95, wire::Pause{}});
  EXPECT_EQ(record_.pauses, 1U) << "it has not said who it is";
  step(Received{90, wire::Pause{.on = true}});
  step(Received{1, wire::Pause{}});
  EXPECT_EQ(record_.pauses, 1U) << "no order for it to give";
  step(Received{90, wire::Pause{}});
  EXPECT_EQ(record_.pauses, 2U);
}

TEST_F(PausesTest, AStopHasTheJobGoOnFirst) {
  order(true);
  step(Received{kObserver, wire::Snapshot{.word = wire::SnapshotWord::kStop, .version = 50}});
  EXPECT_EQ(record_.pauses, 1U) << "a job without snapshots does not stop after a step";
  step(Received{kObserver, wire::Snapshot{.word = wire::SnapshotWord::kStop}});
  EXPECT_EQ(record_.pauses, 2U);
}

TEST_F(PausesTest, NoSnapshotIsMadeOfAJobThatIsPaused) {
  options_.snapshots = {.wanted = true, .every = seconds(30)};
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  SetUp();
  order(true);
  step(Received{kObserver, wire::Snapshot{.word = wire::SnapshotWord::kAsk}});
  const auto* answer = last<wire::Snapshot>(kObserver);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(answer->word, wire::SnapshotWord::kFailed);
  EXPECT_EQ(answer->why, "the job is paused: `holdfast resume` comes first");
}

TEST_F(PausesTest, AJobThatHasEndedSaysWhy) {
  options_.by_agent = true;  // The scheduler waits for it before it leaves.
  options_.agent_patience = seconds(10);
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  SetUp();
  step(Closed{90});
  step(Received{1, wire::Failed{{.kind = Kind::kProgram, .detail = "no"}}});
  ASSERT_TRUE(end_.has_value());
  order(true);
  EXPECT_EQ(answer().kind, Kind::kProgram);
  EXPECT_EQ(record_.pauses, 0U);
}

}  // namespace
}  // namespace holdfast::controller
