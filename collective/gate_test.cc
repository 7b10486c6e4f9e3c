// All waiters agree on whether a barrier is complete, also when abort() races; abort() wakes every
// sleeper.
#include "collective/gate.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "base/rounds_for_test.h"

namespace holdfast::collective {
namespace {

using std::chrono::steady_clock;

Passage arrive(Gate& gate, std::uint64_t target) {
  WaitPolicy policy;
  return gate.arrive_and_wait(target, policy);
}

TEST(Gate, PassesOneAloneWithoutWaiting) {
  const auto gate = std::make_unique<Gate>();
  for (std::uint64_t k = 1; k < 100; ++k) EXPECT_EQ(arrive(*gate, k), Passage::kPassed);
}

TEST(WaitPolicy, YieldsUntilOneTookLongAndThenRestsForAWhile) {
  WaitPolicy policy;
  for (int wait = 0; wait < 3; ++wait) {
    EXPECT_TRUE(policy.may_yield());
    EXPECT_TRUE(policy.goes_on(WaitPolicy::kLong));
  }
  for (int again = 0; again < 2; ++again) {
    EXPECT_FALSE(policy.goes_on(WaitPolicy::kLong + std::chrono::nanoseconds(1)));
    for (std::uint32_t wait = 1; wait < WaitPolicy::kRest; ++wait) ASSERT_FALSE(policy.may_yield());
    EXPECT_TRUE(policy.may_yield());
    EXPECT_TRUE(policy.goes_on({}));
  }
}

TEST(WaitPolicy, SpinsOnlyWhereThereAreCoresEnough) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const int cores = CPU_COUNT(&before);
  EXPECT_TRUE(WaitPolicy::among(cores).may_spin());
  EXPECT_FALSE(WaitPolicy::among(cores + 1).may_spin());
}

TEST(Gate, DoesNotCountWhoComesAfterAbort) {
  const auto gate = std::make_unique<Gate>();
  gate->abort();
  EXPECT_EQ(arrive(*gate, 1), Passage::kAborted);
  EXPECT_EQ(arrive(*gate, 1), Passage::kAborted);
}

TEST(Gate, AbortGoesBeforeLeave) {
  const auto gate = std::make_unique<Gate>();
  gate->leave();
  EXPECT_EQ(arrive(*gate, 1), Passage::kLeft);
  gate->abort();
  EXPECT_EQ(arrive(*gate, 1), Passage::kAborted);
}

// If one rank saw barrier k complete, all did, also if an abort came in the middle of it.
TEST(Gate, AllAgreeHowFarTheyCameWhenAbortRaces) {
  constexpr int kRanks = 3;
  int ended_late = 0;
  for (std::uint64_t round = 0; round < rounds(1500); ++round) {
    const auto gate = std::make_unique<Gate>();
    std::vector<std::uint64_t> passed(kRanks);
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        std::uint64_t k = 0;
        while (arrive(*gate, (k + 1) * kRanks) == Passage::kPassed) ++k;
        passed[rank] = k;
      });
    }
    const std::uint64_t patience = derive(11, round) % 300;
    for (std::uint64_t i = 0; i < patience; ++i) std::this_thread::yield();
    gate->abort();
    threads.clear();
    EXPECT_EQ(passed[0], passed[1]) << "round " << round;
    EXPECT_EQ(passed[0], passed[2]) << "round " << round;
    ended_late += passed[0] > 0 ? 1 : 0;
  }
  EXPECT_GT(ended_late, 0) << "no abort came in the midst: the test has tested nothing";
}

TEST(Gate, AbortWakesAllSleepers) {
  constexpr int kSleepers = 3;
  for (int round = 0; round < 30; ++round) {
    const auto gate = std::make_unique<Gate>();
    std::vector<std::jthread> threads;
    for (int i = 0; i < kSleepers; ++i) {
      threads.emplace_back([&] { EXPECT_EQ(arrive(*gate, kSleepers + 1), Passage::kAborted); });
    }
    while (gate->sleepers() < kSleepers) std::this_thread::yield();
    gate->abort();
  }  // Joins the threads: one that was not woken hangs the test until its time limit.
}

TEST(Gate, CompletionWakesAllSleepers) {
  const auto gate = std::make_unique<Gate>();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(arrive(*gate, 4), Passage::kPassed); });
  }
  while (gate->sleepers() < 3) std::this_thread::yield();
  EXPECT_EQ(arrive(*gate, 4), Passage::kPassed);
  threads.clear();
  EXPECT_EQ(gate->sleepers(), 0U);
}

TEST(Gate, GivesUpByAbortingAtTheDeadline) {
  const auto gate = std::make_unique<Gate>();
  EXPECT_EQ(gate->arrive_and_wait(2, steady_clock::now() + std::chrono::milliseconds(5), {}),
            Passage::kAborted);
  EXPECT_TRUE(gate->aborted());
}

TEST(Gate, GivesUpByAbortingWhenCancelledWhileAsleep) {
  const auto gate = std::make_unique<Gate>();
  std::stop_source stop;
  std::jthread waiter([&] {
    EXPECT_EQ(
        gate->arrive_and_wait(2, steady_clock::now() + std::chrono::minutes(1), stop.get_token()),
        Passage::kAborted);
  });
  while (gate->sleepers() < 1) std::this_thread::yield();
  stop.request_stop();
}

}  // namespace
}  // namespace holdfast::collective
