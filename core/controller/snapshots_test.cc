// How a snapshot is made round by round, and how a job begins again from one.
#include <gtest/gtest.h>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {

using wire::Reason;
using wire::SnapshotWord;
using wire::Stage;

namespace {

using std::chrono::seconds;

// Three ranks on links 1 to 3, whose agent is on link 90.
class SnapshotsTest : public ControllerTest {
 protected:
  SnapshotsTest() {
    options_.snapshots = {.wanted = true, .every = seconds(30), .steps = 0, .keep = 2};
    begin_job();
  }
  void begin_job(std::vector<wire::SnapshotName> resume = {}) {
    wire::Formation formation{.job = "job", .run_id = 0xabc};
    formation.snapshots = std::move(resume);
    record_ = formation;
    machine_.emplace(options_, formation);
    step(Started{});
  }
  wire::AgentState agent_of_all() {
    wire::AgentState all{.job = "job", .agent_id = "agent", .host = "host"};
    for (Rank rank = 0; rank < 3; ++rank) all.places.push_back({cat(rank), 10, 1, true});
    return all;
  }
  void come_all() {
    step(Received{90, agent_of_all()});
    for (Link link = 1; link <= 3; ++link) come(link, who(cat(link - 1), 10, 1));
  }
  void report_all(Version version, Version staged) {
    for (Link link = 1; link <= 3; ++link) {
      step(Received{link, wire::Report{machine_->generation(), version, staged, true}});
    }
  }
  void repair_all() {
    for (Link link = 1; link <= 3; ++link) {
      step(Received{link, wire::Repaired{machine_->generation()}});
    }
  }
  void progress_all(Version version) {
    for (Link link = 1; link <= 3; ++link) {
      step(Received{link, wire::Progress{machine_->generation(), version}});
    }
  }
  void train() {
    come_all();
    report_all(kNoVersion, kNoVersion);
    repair_all();
    ASSERT_EQ(machine_->stage(), Stage::kRunning);
    progress_all(1);
  }
  void wait(Duration time) {
    now_ += time;
    step(TimePassed{});
  }
  // The newest word about a snapshot on this link; null: none was said.
  const wire::Snapshot* told(Link link) {
    const auto& all = said_[link];
    for (auto at = all.rbegin(); at != all.rend(); ++at) {
      if (const auto* word = std::get_if<wire::Snapshot>(&*at)) return word;
    }
    return nullptr;
  }
  std::size_t times_told(Link link) {
    const auto& all = said_[link];
    return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [](const auto& m) {
      return std::holds_alternative<wire::Snapshot>(m);
    }));
  }
  // The answer to the newest word on this link.
  void answer(Link link, SnapshotWord word, const std::string& why = "") {
    wire::Snapshot m = *told(link);
    m.word = word;
    m.why = why;
    if (word != SnapshotWord::kWritten) m.files.clear();
    for (auto& file : m.files) file.bytes = 100;
    step(Received{link, m});
  }
  void take_all() {
    for (Link link = 1; link <= 3; ++link) answer(link, SnapshotWord::kTaken);
  }
  // The ranks come to a new generation, and rank 2 has nothing any more.
  void lose_rank_2(Version version_of_others) {
    step(Received{2, wire::GroupLost{machine_->generation()}});
    for (Link link = 1; link <= 2; ++link) {
      step(Received{
          link, wire::Report{machine_->generation(), version_of_others, version_of_others, true}});
    }
    step(Received{3, wire::Report{machine_->generation(), kNoVersion, kNoVersion, true}});
  }
  void find_unreadable(Link link) {
    step(Received{link, wire::Snapshot{.word = SnapshotWord::kUnreadable,
                                       .generation = machine_->generation(),
                                       .version = 70,
                                       .name = "b-70",
                                       .why = "it is damaged"}});
  }
  void make_one() {
    take_all();
    answer(90, SnapshotWord::kWritten);
    answer(90, SnapshotWord::kNamed);
  }
  const std::vector<wire::SnapshotName>& known() { return machine_->head().snapshots; }
};

TEST_F(SnapshotsTest, OneIsMadeWhenAllHaveTakenItAndItIsWrittenAndNamed) {
  train();
  wait(seconds(29));
  EXPECT_EQ(told(1), nullptr);
  wait(seconds(1));
  for (Link link = 1; link <= 3; ++link) {
    ASSERT_NE(told(link), nullptr);
    EXPECT_EQ(told(link)->word, SnapshotWord::kTake);
    EXPECT_EQ(told(link)->version, 3U) << "two steps ahead of the newest one";
  }
  answer(1, SnapshotWord::kTaken);
  answer(2, SnapshotWord::kTaken);
  EXPECT_EQ(told(90), nullptr);
  answer(3, SnapshotWord::kTaken);
  ASSERT_NE(told(90), nullptr);
  EXPECT_EQ(told(90)->word, SnapshotWord::kWrite);
  EXPECT_EQ(told(90)->name, "0000000000000abc-1-3");
  EXPECT_EQ(told(90)->files.size(), 3U);
  answer(90, SnapshotWord::kWritten);
  EXPECT_EQ(told(90)->word, SnapshotWord::kName);
  EXPECT_EQ(told(90)->files.size(), 3U);
  EXPECT_TRUE(known().empty()) << "it has no name yet";
  answer(90, SnapshotWord::kNamed);
  ASSERT_EQ(known().size(), 1U);
  EXPECT_EQ(known()[0].version, 3U);
  EXPECT_EQ(record_.snapshots, known()) << "it is on record";
  const auto before = times_told(1);
  wait(seconds(29));
  EXPECT_EQ(times_told(1), before);
  wait(seconds(1));
  EXPECT_EQ(times_told(1), before + 1);
}

TEST_F(SnapshotsTest, TheFirstComesEarly) {
  options_.snapshots.every = seconds(300);
  begin_job();
  train();
  wait(seconds(29));
  EXPECT_EQ(times_told(1), 0U);
  wait(seconds(1));
  EXPECT_EQ(times_told(1), 1U);
  make_one();
  wait(seconds(299));
  EXPECT_EQ(times_told(1), 1U);
  wait(seconds(1));
  EXPECT_EQ(times_told(1), 2U);
}

TEST_F(SnapshotsTest, OldOnesGoOnceANewerOneIsWhole) {
  train();
  for (Version version = 1; version <= 3; ++version) {
    wait(seconds(30));
    if (version == 3) break;
    make_one();
    progress_all(10 * version);
  }
  take_all();
  answer(90, SnapshotWord::kWritten);
  EXPECT_EQ(told(90)->old, std::vector<std::string>{"0000000000000abc-1-3"});
  answer(90, SnapshotWord::kNamed);
  ASSERT_EQ(known().size(), 2U);
  EXPECT_EQ(known()[0].version, 22U);
  EXPECT_EQ(known()[1].version, 12U);
}

// The word that the next one is whole may be lost after the agent has removed what it was told to.
TEST_F(SnapshotsTest, TheNewestOnRecordStaysUntilTheNextIsOnRecord) {
  options_.snapshots.keep = 1;
  begin_job();
  train();
  wait(seconds(30));
  make_one();
  progress_all(10);
  wait(seconds(30));
  take_all();
  answer(90, SnapshotWord::kWritten);
  EXPECT_TRUE(told(90)->old.empty());
  answer(90, SnapshotWord::kNamed);
  progress_all(20);
  wait(seconds(30));
  take_all();
  answer(90, SnapshotWord::kWritten);
  EXPECT_EQ(told(90)->old, std::vector<std::string>{"0000000000000abc-1-3"});
}

TEST_F(SnapshotsTest, ItAsksFurtherAheadIfItCameTooLate) {
  train();
  wait(seconds(30));
  answer(1, SnapshotWord::kTaken);
  answer(2, SnapshotWord::kMissed);
  EXPECT_EQ(told(2)->version, 5U) << "four steps ahead now";
  answer(1, SnapshotWord::kTaken);
  answer(3, SnapshotWord::kTaken);
  EXPECT_EQ(told(90), nullptr);
  answer(2, SnapshotWord::kTaken);
  EXPECT_NE(told(90), nullptr);
}

TEST_F(SnapshotsTest, BySteps) {
  options_.snapshots = {.wanted = true, .every = {}, .steps = 100, .keep = 2};
  begin_job();
  train();
  ASSERT_NE(told(1), nullptr);
  EXPECT_EQ(told(1)->version, 100U);
  progress_all(100);
  make_one();
  EXPECT_EQ(told(1)->version, 200U);
}

TEST_F(SnapshotsTest, AFaultWhileTheyTakeItCostsTheRoundAndTheNextIsDueAtOnce) {
  train();
  wait(seconds(30));
  answer(1, SnapshotWord::kTaken);
  step(Received{2, wire::GroupLost{machine_->generation()}});
  answer(3, SnapshotWord::kTaken);
  answer(2, SnapshotWord::kTaken);
  EXPECT_EQ(told(90), nullptr);
  report_all(3, 3);
  EXPECT_EQ(times_told(1), 1U);
  progress_all(4);
  EXPECT_EQ(times_told(1), 2U);
  EXPECT_EQ(told(1)->version, 6U);
}

TEST_F(SnapshotsTest, AFaultWhileItIsWrittenCostsNothing) {
  train();
  wait(seconds(30));
  take_all();
  step(Received{2, wire::GroupLost{machine_->generation()}});
  answer(90, SnapshotWord::kWritten);
  answer(90, SnapshotWord::kNamed);
  EXPECT_EQ(known().size(), 1U);
}

TEST_F(SnapshotsTest, AnAgentThatLeavesCostsTheRound) {
  train();
  wait(seconds(30));
  take_all();
  const auto before = times_told(1);
  step(Closed{90});
  EXPECT_EQ(times_told(1), before);
  step(Received{91, agent_of_all()});
  wait(seconds(1));
  EXPECT_EQ(times_told(1), before + 1) << "once its agent is back";
}

TEST_F(SnapshotsTest, UsersHearOnceOfADiskThatIsFull) {
  train();
  for (int i = 0; i < 3; ++i) {
    wait(seconds(30));
    take_all();
    answer(90, SnapshotWord::kFailed, "no room");
  }
  ASSERT_EQ(remarks_.size(), 1U);
  EXPECT_EQ(remarks_[0].what.kind, Reason::Kind::kSnapshotFailed);
  EXPECT_EQ(remarks_[0].what.detail, "no room");
  EXPECT_EQ(remarks_[0].what.host, "host");
  EXPECT_FALSE(end_);
}

TEST_F(SnapshotsTest, NoneOnceARankHasEnded) {
  train();
  wait(seconds(30));
  step(Received{1, wire::Finished{machine_->generation(), 2}});
  answer(2, SnapshotWord::kTaken);
  answer(3, SnapshotWord::kTaken);
  wait(seconds(60));
  EXPECT_EQ(told(90), nullptr);
  EXPECT_EQ(times_told(2), 1U);
}

TEST_F(SnapshotsTest, WithoutAnAgentThereIsNone) {
  for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link));
  report_all(kNoVersion, kNoVersion);
  repair_all();
  progress_all(1);
  wait(seconds(30));
  EXPECT_TRUE(remarks_.empty()) << "their agents may not have told of them yet";
  wait(seconds(1));
  EXPECT_EQ(told(1), nullptr);
  ASSERT_EQ(remarks_.size(), 1U);
  EXPECT_EQ(remarks_[0].what.kind, Reason::Kind::kSnapshotFailed);
}

// By steps, the next one is due as soon as there is none.
TEST_F(SnapshotsTest, WithoutAnAgentItIsNotTriedAgainAtOnce) {
  options_.snapshots = {.wanted = true, .every = {}, .steps = 100, .keep = 2};
  begin_job();
  for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link));
  report_all(kNoVersion, kNoVersion);
  repair_all();
  progress_all(1);
  for (const std::size_t told : {0U, 1U}) {
    EXPECT_EQ(remarks_.size(), told);
    ASSERT_TRUE(machine_->deadline());
    EXPECT_GT(*machine_->deadline(), now_);
    wait(seconds(1));
  }
}

TEST_F(SnapshotsTest, OnceItsAgentHasToldOfEachItIsMade) {
  options_.snapshots = {.wanted = true, .every = {}, .steps = 100, .keep = 2};
  begin_job();
  for (Link link = 1; link <= 3; ++link) come(link, who(cat(link - 1), 10, 1));
  report_all(kNoVersion, kNoVersion);
  repair_all();
  progress_all(1);
  EXPECT_EQ(told(1), nullptr);
  step(Received{90, agent_of_all()});
  ASSERT_NE(told(1), nullptr);
  EXPECT_EQ(told(1)->word, SnapshotWord::kTake);
}

// ---- On request ---------------------------------------------------------------------------------

TEST_F(SnapshotsTest, WhoAsksHearsWhenItIsWhole) {
  train();
  const wire::Snapshot ask{.word = SnapshotWord::kAsk};
  step(Connected{80, wire::PeerKind::kObserver});
  step(Received{80, ask});
  step(Received{90, ask});
  ASSERT_NE(told(1), nullptr) << "at once";
  make_one();
  ASSERT_NE(told(80), nullptr);
  EXPECT_EQ(told(80)->word, SnapshotWord::kNamed);
  EXPECT_EQ(told(80)->version, 3U);
  EXPECT_EQ(told(90)->word, SnapshotWord::kNamed);
}

TEST_F(SnapshotsTest, WhoAsksHearsWhyThereIsNone) {
  train();
  step(Received{90, wire::Snapshot{.word = SnapshotWord::kAsk}});
  answer(2, SnapshotWord::kFailed, "no room");
  EXPECT_EQ(told(90)->word, SnapshotWord::kFailed);
  EXPECT_EQ(told(90)->why, "no room");
  step(Received{1, wire::Finished{machine_->generation(), 2}});
  step(Received{90, wire::Snapshot{.word = SnapshotWord::kAsk}});
  EXPECT_EQ(told(90)->word, SnapshotWord::kFailed);
  EXPECT_EQ(told(90)->why, "a rank has ended its training");
}

TEST_F(SnapshotsTest, AStopComesAfterTheSnapshotOfAStep) {
  train();
  step(Connected{80, wire::PeerKind::kObserver});
  step(Received{80, wire::Snapshot{.word = SnapshotWord::kStop, .version = 50}});
  EXPECT_EQ(told(1), nullptr) << "it is far";
  progress_all(47);
  EXPECT_EQ(told(1), nullptr);
  progress_all(48);
  ASSERT_NE(told(1), nullptr);
  EXPECT_EQ(told(1)->version, 50U);
  progress_all(50);
  make_one();
  EXPECT_EQ(told(80)->word, SnapshotWord::kNamed);
  EXPECT_EQ(told(90)->word, SnapshotWord::kStop);
}

// One that is far must not hold up the others, nor be met by them.
TEST_F(SnapshotsTest, AStopAfterAFarStepHoldsUpNothing) {
  train();
  step(Connected{80, wire::PeerKind::kObserver});
  step(Received{80, wire::Snapshot{.word = SnapshotWord::kStop, .version = 5000}});
  wait(seconds(30));
  make_one();
  EXPECT_EQ(known().size(), 1U);
  EXPECT_EQ(told(80), nullptr);
  step(Received{90, wire::Snapshot{.word = SnapshotWord::kAsk}});
  answer(2, SnapshotWord::kFailed, "no room");
  EXPECT_EQ(told(90)->word, SnapshotWord::kFailed);
  EXPECT_EQ(told(80), nullptr);
  step(Closed{80});
  progress_all(5000);
  wait(seconds(30));
  make_one();
  EXPECT_NE(told(90)->word, SnapshotWord::kStop) << "who has asked for it has hung up";
}

TEST_F(SnapshotsTest, WhoAsksNeedNotWaitForAStepThatIsFar) {
  options_.snapshots = {.wanted = true, .every = {}, .steps = 1000, .keep = 2};
  begin_job();
  train();
  EXPECT_EQ(told(1)->version, 1000U);
  step(Received{90, wire::Snapshot{.word = SnapshotWord::kAsk}});
  EXPECT_EQ(told(1)->version, 3U);
  make_one();
  EXPECT_EQ(told(90)->word, SnapshotWord::kNamed);
  EXPECT_EQ(told(1)->version, 1000U) << "then as before";
}

TEST_F(SnapshotsTest, AStopThatHasNoSnapshotEndsNothing) {
  train();
  step(Connected{80, wire::PeerKind::kObserver});
  step(Received{80, wire::Snapshot{.word = SnapshotWord::kStop}});
  answer(2, SnapshotWord::kFailed, "no room");
  EXPECT_EQ(told(80)->word, SnapshotWord::kFailed);
  EXPECT_EQ(told(90), nullptr);
  step(Received{80, wire::Snapshot{.word = SnapshotWord::kStop, .version = 9}});
  step(Received{1, wire::Finished{machine_->generation(), 2}});
  EXPECT_EQ(told(80)->word, SnapshotWord::kFailed);
  EXPECT_EQ(told(80)->why, "a rank has ended its training");
  EXPECT_EQ(told(90), nullptr);
}

TEST_F(SnapshotsTest, ADiskThatHangsCostsTheRoundAndALine) {
  train();
  wait(seconds(30));
  take_all();
  wait(std::chrono::minutes(9));
  EXPECT_TRUE(remarks_.empty());
  wait(std::chrono::minutes(1));
  ASSERT_EQ(remarks_.size(), 1U);
  EXPECT_EQ(remarks_[0].what.kind, Reason::Kind::kSnapshotFailed);
}

TEST_F(SnapshotsTest, AJobWithoutSnapshotsStopsAtOnce) {
  options_.snapshots = {};
  begin_job();
  train();
  step(Connected{80, wire::PeerKind::kObserver});
  step(Received{80, wire::Snapshot{.word = SnapshotWord::kStop, .version = 50}});
  EXPECT_EQ(told(80)->word, SnapshotWord::kFailed);
  EXPECT_EQ(told(90), nullptr);
  step(Received{80, wire::Snapshot{.word = SnapshotWord::kStop}});
  EXPECT_EQ(told(80)->word, SnapshotWord::kStop);
  ASSERT_NE(told(90), nullptr);
  EXPECT_EQ(told(90)->word, SnapshotWord::kStop);
}

TEST_F(SnapshotsTest, ARankCanNotStopTheJob) {
  train();
  step(Received{1, wire::Snapshot{.word = SnapshotWord::kStop}});
  step(Received{1, wire::Snapshot{.word = SnapshotWord::kAsk}});
  EXPECT_EQ(told(1), nullptr);
  EXPECT_EQ(told(90), nullptr);
}

// ---- Begin again from one -----------------------------------------------------------------------

TEST_F(SnapshotsTest, ANewJobBeginsWithTheNewestOne) {
  begin_job({{70, "b-70"}, {40, "a-40"}});
  come_all();
  report_all(kNoVersion, kNoVersion);
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  const auto* order = at(Stage::kRepairing, 2);
  ASSERT_NE(order, nullptr);
  EXPECT_EQ(order->order.act, wire::Act::kLoad);
  EXPECT_EQ(order->order.snapshot, "b-70");
  EXPECT_EQ(order->version, 70U);
  repair_all();
  EXPECT_EQ(machine_->stage(), Stage::kRunning);
  EXPECT_EQ(machine_->head().version, 70U);
  EXPECT_FALSE(machine_->head().loads);
  ASSERT_EQ(remarks_.size(), 1U);
  EXPECT_EQ(remarks_[0].what.kind, Reason::Kind::kFromSnapshot);
  EXPECT_EQ(remarks_[0].what.count, 0);
}

TEST_F(SnapshotsTest, OneThatCanNotBeReadMakesRoomForTheOlderOne) {
  begin_job({{70, "b-70"}, {40, "a-40"}});
  come_all();
  report_all(kNoVersion, kNoVersion);
  step(Received{1, wire::Repaired{machine_->generation()}});
  find_unreadable(2);
  EXPECT_EQ(machine_->stage(), Stage::kStopping);
  step(Received{1, wire::Report{machine_->generation(), 70, 70, true}});
  step(Received{2, wire::Report{machine_->generation(), kNoVersion, kNoVersion, true}});
  step(Received{3, wire::Report{machine_->generation(), kNoVersion, kNoVersion, true}});
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(at(Stage::kRepairing, 1)->order.snapshot, "a-40");
  EXPECT_EQ(at(Stage::kRepairing, 1)->version, 40U);
}

TEST_F(SnapshotsTest, WithoutAnOlderOneTheJobEnds) {
  begin_job({{70, "b-70"}});
  come_all();
  report_all(kNoVersion, kNoVersion);
  for (Link link = 1; link <= 3; ++link) find_unreadable(link);
  report_all(kNoVersion, kNoVersion);
  ASSERT_TRUE(end_);
  EXPECT_EQ(end_->reason.kind, Reason::Kind::kNoPlan);
}

// What has outlived the fault is newer, or is all gone: never a mixture.
TEST_F(SnapshotsTest, TheLastRungIsTakenOnlyIfTheRanksCanNotDoBetter) {
  train();
  wait(seconds(30));
  make_one();
  progress_all(8);
  step(Received{2, wire::GroupLost{machine_->generation()}});
  report_all(9, 9);
  EXPECT_EQ(machine_->head().version, 9U);
  EXPECT_EQ(machine_->stage(), Stage::kRunning) << "all kept what they had";
  progress_all(10);
  lose_rank_2(10);
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().version, 3U) << "rank 2's private part is gone";
  EXPECT_EQ(at(Stage::kRepairing, 1)->order.act, wire::Act::kLoad);
  ASSERT_EQ(remarks_.size(), 1U);
  EXPECT_EQ(remarks_[0].what.kind, Reason::Kind::kFromSnapshot);
  EXPECT_EQ(remarks_[0].what.count, 7);
}

// Else a fault that costs nothing might load what was made before the job has begun again.
TEST_F(SnapshotsTest, ARoundIsGivenUpOnceTheJobBeginsAgainWithAnOlderOne) {
  train();
  wait(seconds(30));
  make_one();
  progress_all(10);
  wait(seconds(30));
  take_all();
  wire::Snapshot late = *told(90);
  lose_rank_2(13);
  ASSERT_EQ(machine_->head().version, 3U);
  answer(90, SnapshotWord::kWritten);
  EXPECT_EQ(told(90)->word, SnapshotWord::kWrite);
  repair_all();
  progress_all(10);
  ASSERT_EQ(told(1)->version, late.version) << "the same once more";
  take_all();
  EXPECT_NE(told(90)->name, late.name) << "the earlier one may still be written";
  late.word = SnapshotWord::kWritten;
  step(Received{90, late});
  EXPECT_EQ(told(90)->word, SnapshotWord::kWrite) << "an answer to the earlier round";
  answer(90, SnapshotWord::kWritten);
  EXPECT_EQ(told(90)->word, SnapshotWord::kName);
}

TEST_F(SnapshotsTest, WhatIsToBeGivenUpNeverComesBack) {
  {
    train();
    wait(seconds(30));
    make_one();
    progress_all(8);
    lose_rank_2(9);
    ASSERT_EQ(machine_->head().version, 3U);
  }
  // A scheduler that takes over in the midst of it knows it, too.
  machine_.emplace(options_, record_);
  step(Started{.kept = {}, .writers = {}, .remarks = remarks_});
  for (Link link = 11; link <= 13; ++link) come(link, who(cat(link - 11), 10, 1));
  ASSERT_EQ(machine_->stage(), Stage::kStopping);
  step(Received{11, wire::Report{machine_->generation(), 9, 9, true}});
  step(Received{12, wire::Report{machine_->generation(), 3, 3, true}});
  step(Received{13, wire::Report{machine_->generation(), kNoVersion, kNoVersion, true}});
  ASSERT_EQ(machine_->stage(), Stage::kRepairing);
  EXPECT_EQ(machine_->head().version, 3U);
  EXPECT_EQ(at(Stage::kRepairing, 11)->order.act, wire::Act::kLoad);
  EXPECT_FALSE(end_);
}

}  // namespace
}  // namespace holdfast::controller
