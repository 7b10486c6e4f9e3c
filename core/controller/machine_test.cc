// The scheduler's rules about ranks, places and ends. What it does after faults is in
// tests/transcripts and in the simulation.
#include "core/controller/machine.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"

namespace holdfast::controller {
namespace {

class ControllerTest : public ::testing::Test {
 protected:
  explicit ControllerTest(std::int32_t world_size = 3) {
    options_.job = "job";
    options_.run_id = 7;
    options_.world_size = world_size;
    options_.topology_timeout = std::chrono::seconds(60);
    options_.lease = std::chrono::seconds(30);
    options_.replacement_timeout = std::chrono::seconds(120);
    machine_.emplace(options_, std::nullopt);
    step(Started{});
  }

  // Carries out the event; every store is durable at once.
  void step(const Event& event) {
    bool stored = false;
    for (auto& action : machine_->step(now_, event)) {
      stored = stored || std::holds_alternative<Store>(action);
      if (const auto* send = std::get_if<Send>(&action)) said_[send->link].push_back(send->message);
      if (const auto* end = std::get_if<End>(&action)) end_ = *end;
      const auto* note = std::get_if<Note>(&action);
      if (note && note->kind == Note::Kind::kHow) hows_.push_back(note->text);
      if (note && note->kind == Note::Kind::kFault) faults_.push_back(note->text);
    }
    if (stored) step(Stored{});
  }

  static wire::Register who(const std::string& node, Incarnation incarnation,
                            std::uint64_t attempt = 0, const std::string& host = "host") {
    return {.job = "job",
            .node_id = node,
            .incarnation = incarnation,
            .attempt = attempt,
            .host = host,
            .pid = 1,
            .memory = host};
  }
  void come(Link link, const wire::Register& m) { step(Received{link, m}); }
  void report(Link link) {
    step(Received{link, wire::Report{machine_->record().generation, 4, 4}});
  }

  // Wakes it whenever it wants to be, up to and including `end`.
  void pass(Instant end) {
    for (auto at = machine_->deadline(); at && *at <= end; at = machine_->deadline()) {
      now_ = std::max(now_, *at);
      step(TimePassed{});
    }
    now_ = end;
  }

  // All have come and train, without an agent, on links 1, 2, 3.
  void all_train(std::uint64_t attempt = 0) {
    for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link, attempt));
    for (Link link = 1; link <= 3; ++link) report(link);
    ASSERT_EQ(machine_->phase(), Phase::kRunning);
  }

  template <class Message>
  [[nodiscard]] const Message* last(Link link) const {
    const auto found = said_.find(link);
    if (found == said_.end()) return nullptr;
    for (auto m = found->second.rbegin(); m != found->second.rend(); ++m) {
      if (const auto* message = std::get_if<Message>(&*m)) return message;
    }
    return nullptr;
  }
  [[nodiscard]] std::string refusal(Link link) const {
    const auto* refused = last<wire::Refused>(link);
    return refused ? refused->reason : "";
  }
  [[nodiscard]] Rank rank(Link link) const {
    const auto* accepted = last<wire::Accepted>(link);
    return accepted ? accepted->rank : kNoRank;
  }

  Options options_;
  std::optional<Machine> machine_;
  std::map<Link, std::vector<wire::Message>> said_;
  std::optional<End> end_;
  std::vector<std::string> hows_;    // Of notes.
  std::vector<std::string> faults_;  // The same.
  Instant now_{};
};

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

TEST_F(ControllerTest, WhereOneHostIsNeededASecondOneEndsTheJob) {
  options_.one_host = true;
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  come(1, who("0", 1, 0, "host-1"));
  come(2, who("1", 2, 0, "host-2"));
  ASSERT_TRUE(end_.has_value());
  EXPECT_FALSE(end_->success);
  EXPECT_NE(end_->reason.find("node '1' is on host host-2, but node '0' is or was on host host-1"),
            std::string::npos)
      << end_->reason;
  EXPECT_NE(last<wire::JobEnded>(2), nullptr);
}

TEST_F(ControllerTest, WhereOneHostIsNeededASuccessorFromAnotherIsRefused) {
  options_.one_host = true;
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  all_train(1);
  come(9, who("w2", 99, 2, "host-2"));
  EXPECT_NE(last<wire::Refused>(9), nullptr);
  EXPECT_EQ(machine_->phase(), Phase::kRunning);
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
  ASSERT_NE(last<wire::Waiting>(2), nullptr);
  EXPECT_EQ(last<wire::Waiting>(2)->reason, "2 of 3 workers are here");
}

TEST_F(ControllerTest, RefusesOneWorkerTooMany) {
  all_train();
  come(4, who("w4", 40));
  EXPECT_NE(refusal(4).find("one too many"), std::string::npos);
}

TEST_F(ControllerTest, RefusesTheSecondProcessOfANodeBeforeTheStart) {
  come(1, who("a", 1));
  come(2, who("a", 2));
  EXPECT_NE(refusal(2).find("MS_NODE_ID"), std::string::npos);
}

TEST_F(ControllerTest, RefusesTheProcessOfAnotherJob) {
  auto m = who("a", 1);
  m.job = "other";
  come(1, m);
  EXPECT_NE(refusal(1).find("'other'"), std::string::npos);
}

TEST_F(ControllerTest, RefusesAnotherProtocolByItsNumber) {
  auto m = who("a", 1);
  m.protocol = 99;
  come(1, m);
  EXPECT_NE(refusal(1).find("protocol 99"), std::string::npos);
}

TEST_F(ControllerTest, TooFewByTheTimeoutEndsTheJobAndNamesWhoIsHere) {
  come(1, who("a", 1));
  now_ = options_.topology_timeout;
  step(TimePassed{});
  ASSERT_TRUE(end_.has_value());
  EXPECT_FALSE(end_->success);
  EXPECT_NE(end_->reason.find("only 1 of 3"), std::string::npos) << end_->reason;
  EXPECT_NE(end_->reason.find("'a'"), std::string::npos) << end_->reason;
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
  for (const auto& [node, member] : machine_->members()) EXPECT_FALSE(member.lost) << node;
}

TEST_F(ControllerTest, ANewerAttemptTakesThePlaceAtOnce) {
  all_train(1);
  const Generation before = machine_->record().generation;
  come(4, who("w2", 21, 2));
  EXPECT_EQ(rank(4), 1);
  EXPECT_EQ(machine_->record().generation, before + 1);
  EXPECT_EQ(machine_->record().ranks[1].incarnation, 21U);
}

// All workers and the scheduler may die together: then none of those who come was here before.
TEST_F(ControllerTest, AfterItsOwnEndItStillKnowsWhomASuccessorReplaces) {
  all_train(1);
  machine_.emplace(options_, wire::Record(machine_->record()));
  step(Started{});
  come(11, who("w1", 11, 2));
  EXPECT_EQ(faults_, std::vector<std::string>{"rank 0 (process 1) was replaced"});
  come(12, who("w2", 21, 1));
  ASSERT_NE(last<wire::Waiting>(12), nullptr);
  EXPECT_NE(last<wire::Waiting>(12)->reason.find("is leased to process 1 for 30 s"),
            std::string::npos);
}

TEST_F(ControllerTest, AnOlderAttemptIsRefused) {
  all_train(2);
  come(4, who("w2", 21, 1));
  EXPECT_NE(refusal(4).find("newer process"), std::string::npos);
  EXPECT_EQ(machine_->record().ranks[1].incarnation, 20U);
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

TEST_F(ControllerTest, AProvenDeathGivesThePlaceAtOnce) {
  all_train();
  come(4, who("w2", 21));
  step(ProvenDead{"w2", 20});
  EXPECT_EQ(rank(4), 1);
}

TEST_F(ControllerTest, NobodyTakesThePlaceOfARankThatHasEndedItsTraining) {
  all_train();
  step(Received{2, wire::Finished{machine_->record().generation, 9}});
  come(4, who("w2", 21));
  pass(options_.lease - std::chrono::seconds(1));
  step(Received{1, wire::Heartbeat{}});
  step(Received{3, wire::Heartbeat{}});
  pass(options_.lease);
  come(5, who("w2", 22));
  EXPECT_EQ(rank(4), kNoRank);
  EXPECT_EQ(rank(5), kNoRank);
  EXPECT_EQ(machine_->phase(), Phase::kRunning);
  EXPECT_TRUE(machine_->record().ranks[1].finished);
}

// P33, also where a rank comes back to a generation that runs already.
TEST_F(ControllerTest, ResumeNamesARankThatHasEndedItsTraining) {
  all_train();
  EXPECT_EQ(last<wire::Resume>(1)->ended, kNoRank);
  step(Received{2, wire::Finished{machine_->record().generation, 4}});
  step(ProvenDead{"w3", 30});
  come(4, who("w3", 31));
  report(1);
  report(4);
  ASSERT_EQ(machine_->phase(), Phase::kRunning);
  EXPECT_EQ(last<wire::Resume>(1)->ended, 1);
  EXPECT_EQ(last<wire::Resume>(4)->ended, 1);
  step(Closed{4});
  come(5, who("w3", 31));
  ASSERT_NE(last<wire::Resume>(5), nullptr);
  EXPECT_EQ(last<wire::Resume>(5)->ended, 1);
}

TEST_F(ControllerTest, TheProofOfAnOlderDeathIsNoProof) {
  all_train();
  step(ProvenDead{"w2", 19});
  EXPECT_EQ(machine_->phase(), Phase::kRunning);
}

TEST_F(ControllerTest, NothingIsSaidBeforeItIsDurable) {
  come(1, who("a", 1));
  come(2, who("b", 2));
  const auto actions = machine_->step(now_, Received{3, who("c", 3)});
  ASSERT_EQ(actions.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<Store>(actions[0]));
  EXPECT_GT(machine_->step(now_, Stored{}).size(), 1U);
}

TEST_F(ControllerTest, AWorkersFailureEndsTheJobWithItsReason) {
  all_train();
  step(Received{2, wire::Failed{"the loss is NaN"}});
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->reason, "rank 1: the loss is NaN");
}

TEST_F(ControllerTest, AStrangersFailureIsNotHeard) {
  all_train();
  step(Received{9, wire::Failed{"nonsense"}});
  EXPECT_FALSE(end_.has_value());
}

TEST_F(ControllerTest, AnAgentsWordThatCameBeforeTheRegisterCounts) {
  step(Received{9,
                wire::AgentState{"job", "agent", "host", {{"w3", 30, 1, false, 137, "died", 0}}}});
  for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link, 1));
  EXPECT_TRUE(machine_->members().at("w3").dead);
}

TEST_F(ControllerTest, ALostRankThatSpeaksAgainIsAskedAgain) {
  for (Link link = 1; link <= 3; ++link) come(link, who(cat("w", link), 10 * link));
  report(1);
  pass(options_.lease);
  ASSERT_TRUE(machine_->members().at("w1").lost);
  said_.clear();
  step(Received{1, wire::Heartbeat{}});
  EXPECT_NE(last<wire::Stop>(1), nullptr);
}

TEST_F(ControllerTest, AStandstillOfAllCostsNobodyItsPlace) {
  all_train();
  now_ = 10 * options_.lease;
  step(TimePassed{});
  for (const auto& [node, member] : machine_->members()) EXPECT_FALSE(member.lost) << node;
  step(Received{1, wire::Heartbeat{}});
  step(Received{3, wire::Heartbeat{}});
  pass(now_ + options_.lease / 8);
  EXPECT_FALSE(machine_->members().at("w1").lost);
  EXPECT_TRUE(machine_->members().at("w2").lost);  // It alone has nothing to say after it.
  EXPECT_FALSE(machine_->members().at("w3").lost);
}

TEST_F(ControllerTest, AJobForWhichNobodyAsksForARankEndsWithItsLastProcess) {
  const auto ended = [](const std::string& node) {
    return wire::Slot{node, 1, 1, false, 0, "ended with exit code 0", 0};
  };
  const auto state = [&](const std::string& last) {
    wire::AgentState m{"job", "agent", "host", {ended("w1"), ended("w2")}};
    m.slots.push_back(last.empty() ? wire::Slot{"w3", 1, 1, true, 0, "", 0} : ended(last));
    return m;
  };
  step(Received{8, state("")});
  step(Received{9, state("")});  // The same agent on a new connection: four have not ended.
  EXPECT_FALSE(end_.has_value());
  step(Received{9, state("w3")});
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(end_->success);
  EXPECT_NE(end_->reason.find("none has asked for a rank"), std::string::npos) << end_->reason;
}

TEST_F(ControllerTest, AnEndedJobIsOverForWhoeverComes) {
  all_train();
  step(Received{2, wire::Failed{"the loss is NaN"}});
  const wire::Record record = machine_->record();
  machine_.emplace(options_, record);
  step(Started{});
  come(8, who("w1", 11));
  ASSERT_NE(last<wire::JobEnded>(8), nullptr);
  EXPECT_FALSE(last<wire::JobEnded>(8)->success);
}

// The lifeline is quicker than the exit code.
TEST_F(ControllerTest, TellsHowADeathCameOnceItsAgentKnows) {
  all_train(1);
  const auto told = [&](const std::string& words, bool alive, std::uint64_t attempt) {
    const Incarnation incarnation = attempt == 1 ? 20 : 21;
    const wire::Slot slot{"w2", incarnation, attempt, alive, 137, words, 5};
    step(Received{7, wire::AgentState{"job", "agent", "host", {slot}}});
  };
  told("", true, 1);
  told("died", true, 2);
  EXPECT_EQ(hows_, std::vector<std::string>{});
  told("was killed by signal 9 (SIGKILL)", true, 2);
  told("was killed by signal 9 (SIGKILL)", true, 2);
  ASSERT_EQ(hows_.size(), 1U);
  EXPECT_EQ(hows_[0], "rank 1 (process 1) was killed by signal 9 (SIGKILL)");
}

}  // namespace
}  // namespace holdfast::controller
