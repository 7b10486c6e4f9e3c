// Whose turn it is, what a verdict's file may hold, and what ends a rehearsal.
#include "core/agent/rehearsals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/agent/machine_for_test.h"

namespace holdfast::agent {
namespace {

using wire::Verdict;

TEST(Verdict, IsThreeLinesAndNothingElse) {
  const auto differs = verdict_in("differs\n120\nthe gradient of w\n");
  ASSERT_TRUE(differs);
  EXPECT_EQ(*differs, (wire::RehearsalState{"", Verdict::kDiffers, 120, "the gradient of w"}));
  EXPECT_EQ(verdict_in("equal\n7\n\n")->verdict, Verdict::kEqual);
  EXPECT_EQ(verdict_in("equal\n7")->version, 7U);
  EXPECT_EQ(verdict_in("uncertain\n7\nwhy")->verdict, Verdict::kUncertain);
  EXPECT_EQ(verdict_in("skipped\n0\nwhy")->sentence, "why");
  EXPECT_EQ(verdict_in("differs\n7\n\x1b[2J\xff\tx")->sentence, "?[2J??x");
  EXPECT_TRUE(verdict_in("differs\n7\n" + std::string(wire::kMaxSentenceBytes, 'x')));
  for (const std::string bad : {"", "equal", "equal\n", "equal\n-7\n\n", "equal\n7x\n\n",
                                "equal\n18446744073709551616\n", "Equal\n7\n\n", "equal\n7\nwhy\n",
                                "differs\n7\n\n", "differs\n7\nwhy\nmore", "equal\n7\n\n\n"}) {
    EXPECT_FALSE(verdict_in(bad)) << bad;
  }
  EXPECT_FALSE(verdict_in("differs\n7\n" + std::string(wire::kMaxSentenceBytes + 1, 'x')));
}

// An agent of w0 and w1 with a spare that is ready.
class RehearsalTest : public AgentTest {
 protected:
  void begin(std::int32_t spares = 1, bool strict = false, bool on = true) {
    options_ = {.on = on, .strict = strict, .logs = "logs"};
    start(spares, 5);
    step(LinkUp{});
    for (const auto& spare : std::vector<Spawn>(spares_)) step(SpareReady{spare.process});
  }
  void progress(Generation generation) {
    step(Received{wire::JobProgress{generation, ++version_, 0, 0}});
  }
  // It ends by itself, and has left this.
  void ends(const std::string& verdict, std::int32_t code = 0) {
    Died died{newest().process, ending(code), 1};
    if (!verdict.empty()) died.verdict = verdict;
    step(died);
  }
  // Its end was the agent's doing.
  void is_gone(const std::string& verdict = {}) { ends(verdict, 137); }
  void all_are_equal(int ranks = 2) {
    for (int i = 0; i < ranks; ++i) ends("equal\n1\n\n");
  }
  [[nodiscard]] const Spawn& newest() const { return rehearsals_.back(); }
  [[nodiscard]] std::string order() const {
    std::string text;
    for (const auto& one : rehearsals_) text += one.node_id.back();
    return text;
  }
  [[nodiscard]] bool was_killed(Process process) const {
    return std::any_of(killed_.begin(), killed_.end(),
                       [&](const Kill& kill) { return kill.process == process && !kill.gently; });
  }
  [[nodiscard]] std::vector<wire::RehearsalState> shown() const {
    return std::get<wire::AgentState>(said_.back()).rehearsals;
  }
  // The newest pause so long is over.
  void passes(Duration how_long) {
    const auto pause = std::find_if(pauses_.rbegin(), pauses_.rend(), [&](const WantPause& wanted) {
      return wanted.how_long == how_long;
    });
    ASSERT_NE(pause, pauses_.rend());
    step(PauseOver{pause->pause});
  }

  static constexpr Duration kInterval = std::chrono::seconds(60);
  static constexpr Duration kAtMost = std::chrono::seconds(600);
  Version version_ = 0;
};

TEST_F(RehearsalTest, WaitsForAStepAndForTheSpares) {
  options_ = {.on = true};
  start(2, 5);
  progress(1);
  step(SpareReady{spares_[0].process});
  EXPECT_EQ(order(), "");
  step(SpareReady{spares_[1].process});
  EXPECT_EQ(order(), "0");
  EXPECT_EQ(newest().attempt, 1U);
  EXPECT_TRUE(spares_.size() == 2 && places_.at("w0").attempt == 1);
  begin();
  EXPECT_EQ(order(), "0");
  progress(1);
  EXPECT_EQ(order(), "00");
}

TEST_F(RehearsalTest, ThereIsNoneWithoutASpareNorWhereTheyAreOff) {
  begin(0);
  progress(1);
  begin(1, false, false);
  progress(1);
  EXPECT_EQ(order(), "");
}

TEST_F(RehearsalTest, ASecondProcessGoesOnAtOnceAndNoThird) {
  begin();
  progress(1);
  ends("again\n7\n\n");
  EXPECT_EQ(order(), "00");
  EXPECT_EQ(newest().attempt, 2U);
  ends("uncertain\n7\nw\n");
  EXPECT_EQ(order(), "001");
  EXPECT_EQ(newest().attempt, 1U);
  ends("again\n8\n\n");
  ends("again\n8\n\n");
  EXPECT_EQ(order(), "0011");
  EXPECT_EQ(shown().back().verdict, Verdict::kSkipped);
}

TEST_F(RehearsalTest, AFaultMakesTheFirstProcessBeginAnew) {
  begin();
  progress(1);
  ends("again\n7\n\n");
  EXPECT_EQ(newest().attempt, 2U);
  step(Died{at("w1"), {}, 5});  // The lifeline tells.
  is_gone();
  progress(2);
  step(SpareReady{spares_.back().process});
  EXPECT_EQ(order(), "000");
  EXPECT_EQ(newest().attempt, 1U);
}

TEST_F(RehearsalTest, OneAfterTheOtherAndThenAfterARest) {
  begin();
  progress(1);
  progress(1);
  EXPECT_EQ(order(), "0");
  ends("equal\n5\n\n");
  EXPECT_EQ(order(), "01");
  ends("equal\n9\n\n");
  progress(1);
  EXPECT_EQ(order(), "01");
  EXPECT_EQ(shown(), (std::vector<wire::RehearsalState>{{"w0", Verdict::kEqual, 5, ""},
                                                        {"w1", Verdict::kEqual, 9, ""}}));
  passes(kInterval);
  EXPECT_EQ(order(), "010");
  ends("equal\n11\n\n");
  EXPECT_EQ(order(), "010");
  passes(kInterval);
  EXPECT_EQ(order(), "0101");
  EXPECT_TRUE(told_.empty() && logged_.empty());
}

TEST_F(RehearsalTest, AFaultEndsItFirstAndItBeginsAnew) {
  begin();
  progress(1);
  ends("equal\n5\n\n");
  const Process process = newest().process;
  step(Died{at("w0"), {}, 5});  // The lifeline tells.
  ASSERT_TRUE(was_killed(process));
  const auto first = std::find_if(done_.begin(), done_.end(), [](const std::string& what) {
    return what == "kill" || what == "promote";
  });
  EXPECT_EQ(*first, "kill");
  is_gone("differs\n5\nw\n");  // That it had this counts no more.
  progress(1);                 // Made before the fault.
  EXPECT_EQ(order(), "01");
  progress(2);
  EXPECT_EQ(order(), "01");  // The next spare is not ready.
  step(SpareReady{spares_.back().process});
  EXPECT_EQ(order(), "011");
  EXPECT_EQ(shown().size(), 1U);
  EXPECT_TRUE(told_.empty());
}

TEST_F(RehearsalTest, ALateWordOfAStepBeforeTheFaultBeginsNone) {
  begin();
  progress(1);
  dies(at("w0"), 137);
  is_gone();
  passes(kSparePatience);  // The recovery takes long.
  step(SpareReady{spares_.back().process});
  progress(1);
  EXPECT_EQ(order(), "0");
  progress(2);
  EXPECT_EQ(order(), "00");
}

TEST_F(RehearsalTest, WhateverIsHeardOfARecoveryEndsIt) {
  const std::vector<std::function<void()>> hears = {
      [&] {
        step(Received{wire::Evict{"w1", places_.at("w1").incarnation}});
      },
      [&] { step(Received{wire::Waiting{{.kind = Reason::Kind::kHostLost}}}); },
      [&] { step(Received{wire::Addresses{.name = 2, .base = 1}}); },
      [&] { step(Received{wire::Places{{"w0"}}}); },
      [&] {
        step(Received{wire::Places{{"w0", "w1", "w2"}}});
      },
      [&] {
        for (int i = 0; i < kStoppedLooks; ++i) look({at("w1")});
      },
      [&] { progress(2); }};
  for (std::size_t i = 0; i < hears.size(); ++i) {
    rehearsals_.clear();
    killed_.clear();
    begin();
    progress(1);
    const Process process = newest().process;
    hears[i]();
    EXPECT_TRUE(was_killed(process)) << i;
    is_gone();
    EXPECT_EQ(order(), i + 1 == hears.size() ? "00" : "0") << i;
  }
}

TEST_F(RehearsalTest, WhatIsNoRecoveryLeavesItAlone) {
  begin(2);
  progress(1);
  look({newest().process});
  for (int i = 0; i < kStoppedLooks; ++i) look({newest().process, spares_[1].process});
  step(LinkDown{});
  step(LinkUp{});
  step(Received{wire::Addresses{.name = 2}});
  step(Received{wire::Places{{"w0", "w1"}}});
  dies(spares_[0].process, 137);
  EXPECT_FALSE(was_killed(newest().process));
  EXPECT_EQ(order(), "0");
}

TEST_F(RehearsalTest, OneThatHangsIsKilled) {
  begin();
  progress(1);
  const Process process = newest().process;
  passes(kAtMost);
  EXPECT_TRUE(was_killed(process));
  EXPECT_EQ(order(), "0");  // It is not gone yet.
  is_gone("equal\n5\n\n");
  EXPECT_EQ(order(), "01");
  ASSERT_EQ(shown().size(), 1U);
  EXPECT_EQ(shown()[0].verdict, Verdict::kSkipped);
  EXPECT_EQ(shown()[0].sentence,
            "it had not ended after 600 s and was killed; see rehearsal_w0.log");
  passes(kAtMost);
  EXPECT_TRUE(was_killed(newest().process));
}

TEST_F(RehearsalTest, ALimitThatIsOverLaterHitsNobodyElse) {
  begin();
  progress(1);
  const auto limit = pauses_.back();
  all_are_equal(1);
  step(PauseOver{limit.pause});
  EXPECT_TRUE(killed_.empty());
}

TEST_F(RehearsalTest, OneWithoutAVerdictSaysHowItEnded) {
  begin();
  progress(1);
  step(Died{newest().process, {}, 1});  // The lifeline's word.
  EXPECT_EQ(order(), "0");
  step(Died{newest().process, ending(1), 1, "ValueError: \x1b", 3});
  ends("nonsense", 139);
  passes(kInterval);
  step(SpawnFailed{newest().process, "no memory"});
  ASSERT_EQ(logged_.size(), 2U);  // Once for each rank.
  EXPECT_EQ(logged_[0].detail,
            "it ended with exit code 1 (ValueError: ?) and left no verdict; see rehearsal_w0.log");
  EXPECT_EQ(logged_[0].other, "logs/rehearsal_w0.log");
  EXPECT_EQ(logged_[1].detail,
            "it was killed by signal 11 and what it left is no verdict; see rehearsal_w1.log");
  EXPECT_EQ(shown()[0].sentence, "it could not be started: no memory; see rehearsal_w0.log");
  EXPECT_TRUE(told_.empty() && !exit_ && spares_.size() == 1);
  EXPECT_EQ(machine_->state(), State::kRunning);
}

TEST_F(RehearsalTest, WhatCanNotBeRehearsedIsTriedSeldom) {
  begin();
  progress(1);
  ends("skipped\n0\nno audit\n");
  for (int i = 0; i < 4; ++i) {
    ends("equal\n5\n\n");
    passes(kInterval);
    if (order().back() == '1') break;
    ends("skipped\n0\nno audit\n");
    passes(kInterval);
  }
  EXPECT_EQ(order(),
            "01010"
            "11");
}

TEST_F(RehearsalTest, ADifferenceIsToldOncePerRankAndSentence) {
  begin();
  progress(1);
  const auto differs = [&](const std::string& what) {  // And so does a further step.
    for (int i = 0; i < 2; ++i) ends("differs\n5\n" + what);
  };
  const auto both_say = [&](const std::string& what) {
    for (int i = 0; i < 2; ++i) {
      differs(what);
      passes(kInterval);
    }
  };
  differs("w");
  differs("w");
  passes(kInterval);
  EXPECT_EQ(told_.size(), 2U);
  both_say("w");
  EXPECT_EQ(told_.size(), 2U);
  both_say("b");
  EXPECT_EQ(told_.size(), 4U);
  EXPECT_EQ(told_.back(), (Reason{.kind = Reason::Kind::kRehearsalDiffers,
                                  .version = 5,
                                  .node_id = "w1",
                                  .other = "logs/rehearsal_w1.log",
                                  .detail = "b"}));
  for (int i = 0; i < 30; ++i) both_say(std::to_string(i));
  EXPECT_EQ(told_.size(), 2 * kMostTold);
  EXPECT_FALSE(exit_);
}

TEST_F(RehearsalTest, WhatIsUncertainIsToldOncePerRank) {
  begin();
  progress(1);
  for (const char* why : {"a", "a", "b", "b"}) {
    ends(std::string("uncertain\n5\n") + why);
    if (order().size() > 2) passes(kInterval);
  }
  EXPECT_EQ(told_.size(), 2U);
}

TEST_F(RehearsalTest, ARankThatDiffersInOneStepAloneHasComputedWrong) {
  begin(1, true);
  progress(1);
  ends("differs\n5\nthe gradient of w\n");
  EXPECT_EQ(order(), "00") << "a further step of it, at once";
  EXPECT_EQ(newest().attempt, 1U);
  for (int i = 0; i < kEqualsToBlame; ++i) {
    EXPECT_EQ(shown()[0].verdict, Verdict::kDiffers) << i;
    ends("equal\n9\n\n");
  }
  EXPECT_EQ(order(), "00001");
  const wire::RehearsalState wrong{"w0", Verdict::kWrong, 5, "the gradient of w"};
  EXPECT_EQ(shown(), std::vector{wrong});
  EXPECT_EQ(told_.back(), (Reason{.kind = Reason::Kind::kRehearsalWrong,
                                  .version = 5,
                                  .node_id = "w0",
                                  .other = "logs/rehearsal_w0.log",
                                  .detail = "the gradient of w"}));
  EXPECT_EQ(machine_->state(), State::kRunning);
  ends("equal\n9\n\n");
  passes(kInterval);
  for (const char* later : {"equal\n20\n\n", "uncertain\n20\nw", "skipped\n0\nwhy"}) {
    EXPECT_EQ(order().back(), '0');
    ends(later);
    EXPECT_EQ(shown()[0], wrong) << "it stays in sight after " << later;
    passes(kInterval);
    ends("equal\n20\n\n");
    passes(kInterval);
  }
}

// A processor's fault is one rank's. A program that differs in some steps does so on each rank.
TEST_F(RehearsalTest, ARankIsNotBlamedWhereAnotherOneDiffersAsWell) {
  begin();
  progress(1);
  ends("differs\n5\nw");
  for (int i = 0; i < kEqualsToBlame; ++i) ends("equal\n9\n\n");
  EXPECT_EQ(shown()[0].verdict, Verdict::kWrong);
  ends("differs\n12\nw");
  for (int i = 0; i < kEqualsToBlame; ++i) ends("equal\n20\n\n");
  EXPECT_EQ(order(), "00001111");
  EXPECT_EQ(shown()[1].verdict, Verdict::kDiffers);
}

TEST_F(RehearsalTest, ADifferenceInTwoStepsIsTheProgramS) {
  begin(1, true);
  progress(1);
  ends("differs\n5\nw");
  ends("equal\n9\n\n");
  ends("differs\n12\nw");
  EXPECT_EQ(machine_->state(), State::kEnding);
  begin();
  progress(1);
  ends("differs\n5\nw");
  ends("skipped\n0\nwhy");
  EXPECT_EQ(shown()[0].verdict, Verdict::kDiffers);
  EXPECT_EQ(order().back(), '1');
}

// Its replacement is as new as what rehearses it.
TEST_F(RehearsalTest, ARankThatWasReplacedSinceIsNotSaidToHaveComputedWrong) {
  begin();
  progress(1);
  ends("differs\n5\nw");
  dies(at("w0"), 137);
  is_gone();
  progress(2);
  step(SpareReady{spares_.back().process});
  EXPECT_EQ(order(), "000");
  ends("equal\n9\n\n");
  EXPECT_EQ(shown()[0].verdict, Verdict::kEqual) << "the doubt is over";
}

TEST_F(RehearsalTest, AStrictJobEndsByADifference) {
  begin(1, true);
  progress(1);
  ends("uncertain\n5\nw");
  EXPECT_EQ(machine_->state(), State::kRunning);
  ends("differs\n5\nw");
  EXPECT_EQ(machine_->state(), State::kRunning);
  ends("differs\n6\nw");
  EXPECT_EQ(machine_->state(), State::kEnding);
  EXPECT_EQ(std::get<wire::Failed>(said_.back()).reason.kind, Reason::Kind::kRehearsalDiffers);
  for (const auto& [node_id, spawn] : places_) dies(spawn.process, 143);
  dies(spares_[0].process, 143);
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 1);
  EXPECT_EQ(exit_->reason.detail, "w");
}

TEST_F(RehearsalTest, EndsWithTheJob) {
  for (const int how : {0, 1, 2}) {
    killed_.clear();
    begin();
    progress(1);
    const Process process = newest().process;
    if (how == 0) step(Received{wire::JobEnded{true, {}}});
    if (how == 1) step(Interrupted{15});
    if (how == 2) dies(at("w1"), 0);
    EXPECT_TRUE(was_killed(process)) << how;
    const auto before = rehearsals_.size();
    is_gone("equal\n5\n\n");
    progress(2);
    EXPECT_EQ(rehearsals_.size(), before) << how;
  }
}

// Nobody hears of the interrupt before the workers have ended. A rehearsal holds up nothing.
TEST_F(RehearsalTest, IsNotWaitedForAtAnInterrupt) {
  begin();
  progress(1);
  step(Interrupted{15});
  dies(at("w0"), 143);
  dies(at("w1"), 143);
  dies(spares_[0].process, 143);
  EXPECT_TRUE(std::holds_alternative<wire::Failed>(said_.back()));
}

}  // namespace
}  // namespace holdfast::agent
