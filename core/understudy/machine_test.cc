#include "core/understudy/machine.h"

#include <gtest/gtest.h>

#include <deque>

#include "core/trainer/machine.h"

namespace holdfast::understudy {
namespace {

using wire::Verdict;

// A trainer machine that is led by an understudy, and does what it is told.
struct Stage {
  Stage() : trainer(trainer::Options{.replacement_timeout = std::chrono::seconds(600)}) {}

  void tell(const trainer::Event& event) {
    std::deque<trainer::Event> events{event};
    while (!events.empty()) {
      for (auto& action : trainer.step(Instant{}, events.front())) {
        if (auto* work = std::get_if<trainer::Do>(&action)) todo.push_back(std::move(work->work));
        if (std::holds_alternative<trainer::StopGroup>(action)) {
          events.push_back(trainer::GroupStopped{true});
        }
        if (auto* said = std::get_if<trainer::Say>(&action)) {
          for (auto& led : machine.hear(said->message)) events.push_back(std::move(led));
        }
      }
      events.pop_front();
    }
  }
  // Does its work until the program's call returns.
  trainer::Return run() {
    for (;;) {
      const trainer::Work work = todo.front();
      todo.pop_front();
      if (const auto* back = std::get_if<trainer::Return>(&work)) return *back;
      if (const auto* repair = std::get_if<trainer::Repair>(&work)) {
        EXPECT_EQ(repair->order.act, wire::Act::kReceive);
        ++repairs;
        tell(trainer::Repaired{Holding{repair->version, repair->version, false, {}}, "", false});
      } else if (std::holds_alternative<trainer::JoinGroup>(work)) {
        tell(trainer::Formed{});
      } else if (std::holds_alternative<trainer::LeaveGroup>(work)) {
        tell(trainer::LeftGroup{});
      } else if (std::holds_alternative<trainer::AwaitSums>(work)) {
        tell(trainer::SumsDone{});
      } else if (std::holds_alternative<trainer::Stage>(work)) {
        tell(trainer::Staged{});
      } else if (std::holds_alternative<trainer::Arrive>(work)) {
        return {};  // Where a rehearsal ends.
      }
    }
  }

  Machine machine{{.rank = 1, .world_size = 2, .run_id = 7}};
  trainer::Machine trainer;
  std::deque<trainer::Work> todo;
  int repairs = 0;
};

TEST(Understudy, LeadsATrainerThroughTheStep) {
  for (const bool is_there : {false, true}) {
    Stage stage;
    for (const auto& assigned : stage.machine.begin(5, {})) stage.tell(assigned);
    // A former process has left the state there, with a step that it staged.
    stage.tell(trainer::JoinCalled{is_there ? Holding{5, 6, false, {}} : Holding{}});
    EXPECT_EQ(stage.run().what, trainer::Return::What::kJoined);
    EXPECT_EQ(stage.trainer.holding().version, 5U);
    EXPECT_EQ(stage.trainer.holding().staged, 5U);
    EXPECT_EQ(stage.repairs, is_there ? 0 : 1);
    stage.tell(trainer::StepBegun{});
    EXPECT_EQ(stage.run().what, trainer::Return::What::kBegun);
    stage.tell(trainer::StepEnded{});
    (void)stage.run();
    EXPECT_EQ(stage.trainer.state(), trainer::State::kArriving);
    EXPECT_EQ(stage.trainer.holding().staged, 6U);
  }
}

Account account(std::uint64_t batch, std::uint64_t gradient, std::uint64_t sum) {
  return {{{"its batch", batch}, {"the gradient of w", gradient}}, {{"", {{"exchange 1", sum}}}}};
}

std::optional<Conclusion> conclusion(std::optional<Account> former, const Account& own) {
  Machine machine({}, std::move(former));
  (void)machine.begin(5, account(1, 2, 3));
  return machine.conclude(own);
}

TEST(Understudy, SaysThatAllIsEqual) {
  EXPECT_EQ(conclusion({}, account(1, 2, 3))->verdict, Verdict::kEqual);
}

TEST(Understudy, SaysThatASuccessorDiffersOnlyIfTwoProcessesDoSoAlike) {
  EXPECT_FALSE(conclusion({}, account(1, 8, 9)));
  const auto found = conclusion(account(1, 8, 9), account(1, 8, 9));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->verdict, Verdict::kDiffers);
  EXPECT_EQ(found->what, "the gradient of w");
}

TEST(Understudy, TellsProcessesThatDifferFromEachOtherFromAProgramThatDoesNotKeepAll) {
  for (const auto& second : {account(1, 9, 3), account(1, 2, 3)}) {
    const auto found = conclusion(account(1, 8, 3), second);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->verdict, Verdict::kUncertain);
    EXPECT_EQ(found->what, "the gradient of w");
  }
}

TEST(Understudy, ChanceThatComesLaterDoesNotExcuseAProgram) {
  const auto found = conclusion(account(7, 8, 3), account(7, 9, 3));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->verdict, Verdict::kDiffers);
  EXPECT_EQ(found->what, "its batch");
}

Account breaks_off(Account account, const std::string& otherwise) {
  account.notes.pop_back();
  account.exchanges.clear();
  account.otherwise = otherwise;
  return account;
}

TEST(Understudy, WhatMayVaryCountsOnlyWhereTwoRehearsalsAgree) {
  const auto with_time = [](Account account, std::uint64_t time) {
    account.notes.push_back({"?the time", time});
    account.notes.push_back({"the loss", 4});
    return account;
  };
  const auto conclude = [&](std::uint64_t former, std::uint64_t own, std::uint64_t gradient) {
    Machine machine({}, with_time(account(1, gradient, 3), former));
    (void)machine.begin(5, with_time(account(1, 2, 3), 100));
    return *machine.conclude(with_time(account(1, gradient, 3), own));
  };
  Machine first({});
  (void)first.begin(5, with_time(account(1, 2, 3), 100));
  EXPECT_FALSE(first.conclude(with_time(account(1, 2, 3), 101)));
  EXPECT_EQ(conclude(101, 102, 2).verdict, Verdict::kEqual);
  EXPECT_EQ(conclude(101, 101, 2).what, "the time");
  EXPECT_EQ(conclude(101, 102, 8).verdict, Verdict::kDiffers);
}

TEST(Understudy, WhatWasGivenToOthersComesBeforeTheResults) {
  const auto with_result = [](Account account, std::uint64_t result) {
    account.notes.push_back({std::string(kResults), 0});
    account.notes.push_back({"the loss", result});
    return account;
  };
  const Account rank = with_result(account(1, 2, 3), 4);
  EXPECT_EQ(first_difference(rank, with_result(account(1, 2, 8), 9)), "exchange 1");
  EXPECT_EQ(first_difference(rank, with_result(account(1, 2, 3), 9)), "the loss");
  EXPECT_EQ(first_difference(rank, account(1, 2, 3)), "it never comes to the loss");
}

TEST(Understudy, SaysThatAProgramTakesAnotherWayOnlyIfTwoProcessesDo) {
  const Account ends = breaks_off(account(1, 2, 3), "it ends before the step");
  EXPECT_FALSE(conclusion({}, ends));
  const auto found = conclusion(ends, ends);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->verdict, Verdict::kDiffers);
  EXPECT_EQ(found->what, "it ends before the step");
  for (const auto& [former, own] :
       {std::pair(ends, account(1, 2, 3)), std::pair(account(1, 2, 3), ends)}) {
    EXPECT_EQ(conclusion(former, own)->verdict, Verdict::kUncertain);
  }
  const auto other = conclusion(ends, breaks_off(account(1, 2, 3), "it fails"));
  EXPECT_EQ(other->verdict, Verdict::kUncertain);
}

TEST(Understudy, WhatDiffersBeforeAnotherWayIsItsCause) {
  const Account ends = breaks_off(account(7, 2, 3), "it ends before the step");
  EXPECT_EQ(conclusion(ends, ends)->what, "its batch");
}

std::string first(const Account& rank, const Account& own) {
  return first_difference(rank, own).value_or("nothing");
}

TEST(Understudy, NamesWhatComesAtAnotherPlaceOrNotAtAll) {
  const Account rank = account(1, 2, 3);
  Account other = rank;
  other.notes[1].name = "state.once(evaluate)";
  EXPECT_EQ(first(rank, other),
            "it comes to state.once(evaluate) where the rank came to the gradient of w");
  other = rank;
  other.notes.pop_back();
  EXPECT_EQ(first(rank, other), "it never comes to the gradient of w");
  EXPECT_EQ(first(other, rank), "it comes to the gradient of w, which the rank did not");
  other = rank;
  other.exchanges.clear();
  EXPECT_EQ(first(rank, other), "it never comes to exchange 1");
  EXPECT_EQ(first(other, rank), "it comes to exchange 1, which the rank did not");
  EXPECT_EQ(first(rank, account(1, 2, 4)), "exchange 1");
}

}  // namespace
}  // namespace holdfast::understudy
