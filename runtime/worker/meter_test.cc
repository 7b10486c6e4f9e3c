// Where the time of steps goes: what a rank waits for others is not its own.
#include "runtime/worker/meter.h"

#include <gtest/gtest.h>

#include <thread>

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

class MeterTest : public ::testing::Test {
 protected:
  void pass(Doing next, Meter::Clock::duration before) { meter_.enter(next, now_ += before); }
  // 1 ms between two steps, 20 of the program's part, 30 at the sums, 2 + 4 of its own, 5 waiting.
  void step() {
    pass(Doing::kComputing, 1ms);
    pass(Doing::kSumming, 20ms);
    pass(Doing::kStaging, 30ms);
    pass(Doing::kCommitting, 2ms);
    pass(Doing::kUpdating, 5ms);
    pass(Doing::kBetween, 4ms);
  }
  wire::Progress told() {
    wire::Progress progress;
    meter_.tell(progress);
    return progress;
  }
  Meter meter_;
  Meter::Clock::time_point now_{};
};

TEST_F(MeterTest, WhatARankWaitsForIsNotItsOwn) {
  pass(Doing::kBetween, 0ms);
  EXPECT_EQ(told().own_us, 0U) << "nothing is known yet";
  for (int times = 0; times < 3; ++times) step();
  const auto progress = told();
  EXPECT_EQ(progress.own_us, 27'000U);
  EXPECT_EQ(progress.between_us, 1'000U);
  EXPECT_EQ(told().own_us, 0U) << "it begins anew";
}

TEST_F(MeterTest, NorIsWhatTheProgramWaitsForInExchangesOfItsOwn) {
  pass(Doing::kBetween, 0ms);
  pass(Doing::kComputing, 1ms);
  const auto began = Meter::Clock::now();
  {
    const collective::Waiting waiting;
    const collective::Waiting nested;
    std::this_thread::sleep_for(15ms);
  }
  // At least so long, on a machine that is busy longer.
  const auto waited = Meter::Clock::now() - began;
  pass(Doing::kUpdating, 20ms + waited);
  pass(Doing::kBetween, 0ms);
  const auto own = told().own_us;
  EXPECT_GE(own, 21'000U);
  EXPECT_LE(own, 24'000U);
}

// The buckets of DDP are summed on another thread, while this one computes.
TEST_F(MeterTest, OfWhatOtherThreadsWaitForTheLongestDelaysTheStep) {
  pass(Doing::kBetween, 0ms);
  pass(Doing::kComputing, 1ms);
  std::thread([] {
    for (const auto time : {5ms, 15ms}) {
      const collective::Waiting waiting;
      std::this_thread::sleep_for(time);
    }
  }).join();
  pass(Doing::kUpdating, 100ms);
  pass(Doing::kBetween, 0ms);
  const auto own = told().own_us;
  EXPECT_LE(own, 86'000U);
  EXPECT_GE(own, 50'000U) << "on a machine that is busy longer";
}

TEST_F(MeterTest, ARecoveryIsNoStep) {
  pass(Doing::kBetween, 0ms);
  step();
  pass(Doing::kRecovering, 1000ms);
  pass(Doing::kBetween, 500ms);
  EXPECT_EQ(told().own_us, 0U);
  step();
  EXPECT_EQ(told().own_us, 27'000U);
}

}  // namespace
}  // namespace holdfast::runtime
