#include "core/agent/share.h"

#include <gtest/gtest.h>

namespace holdfast::agent {
namespace {

using namespace std::chrono_literals;

constexpr Duration kEvery = 25ms;

// The processor time that a process uses in `time`, if it gets `competing` percent of a processor
// while it competes, and else `idle` percent. Unless that is 0, only what is used while competing.
Duration used_in(Duration time, int percent, int competing, int idle) {
  Instant now = 7s;
  Duration used{};
  Duration while_competing{};
  Share share(now, percent);
  for (; now < Instant(7s) + time; now += kEvery) {
    const Duration part = kEvery * (share.competes() ? competing : idle) / 100;
    if (share.competes()) while_competing += part;
    used += part;
    share.look(now + kEvery, part);
  }
  return idle == 0 ? used : while_competing;
}

TEST(Share, OnABusyMachineItUsesItsPercentageAndWhatIsAllowedAtOnce) {
  for (const int competing : {25, 50, 100}) {
    const Duration used = used_in(20s, 10, competing, 0);
    EXPECT_GE(used, 1900ms);
    EXPECT_LE(used, 2s + Share::kMost + kEvery);
  }
}

TEST(Share, WhatOthersLeaveCostsNothing) {
  EXPECT_GE(used_in(20s, 10, 100, 100), 1900ms);
}

TEST(Share, OfNothingItNeverCompetes) {
  EXPECT_EQ(used_in(20s, 0, 100, 0), 0ms);
}

TEST(Share, OfAWholeProcessorItAlwaysCompetes) {
  EXPECT_EQ(used_in(20s, 100, 100, 0), 20s);
}

TEST(Share, WhatWasTooMuchIsPaidBack) {
  Share share(0s, 10);
  EXPECT_FALSE(share.look(1s, 500ms));
  EXPECT_FALSE(share.look(3s, 0ms));
  EXPECT_TRUE(share.look(6s, 0ms));
}

}  // namespace
}  // namespace holdfast::agent
