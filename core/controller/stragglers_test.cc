// Ranks and hosts whose steps take longer than those of the others are named, once.
#include <gtest/gtest.h>

#include <vector>

#include "core/controller/machine_for_test.h"

namespace holdfast::controller {
namespace {

using namespace std::chrono_literals;
using wire::Reason;

class StragglersTest : public ControllerTest {
 protected:
  // In each of so many rounds, each rank tells what its own part of a step takes. The first round
  // of a generation is too short to count.
  void rounds(int count, const std::vector<std::uint32_t>& own, std::uint32_t between = 0) {
    for (int round = 0; round < count; ++round) {
      now_ += 1100ms;
      for (Link link = 1; link <= own.size(); ++link) {
        step(Received{link, wire::Progress{machine_->generation(), ++version_, 0, own[link - 1],
                                           link == 2 ? between : 0}});
      }
    }
  }
  std::vector<Reason> slow() {
    std::vector<Reason> all;
    for (const auto& remark : machine_->remarks()) {
      if (remark.what.kind == Reason::Kind::kSlow) all.push_back(remark.what);
    }
    return all;
  }
  Version version_ = 4;
};

TEST_F(StragglersTest, ASlowRankIsNamedOnceWithItsFactor) {
  all_train();
  rounds(9, {30'000, 50'000, 31'000});
  EXPECT_TRUE(slow().empty()) << "that may be chance";
  rounds(30, {30'000, 50'000, 31'000});
  ASSERT_EQ(slow().size(), 1U);
  EXPECT_EQ(slow()[0].rank, 1);
  EXPECT_EQ(slow()[0].count, 50'000);
  EXPECT_EQ(slow()[0].total, 31'000);
  EXPECT_EQ(slow()[0].doing, Doing::kComputing);
}

TEST_F(StragglersTest, WhereItsTimeGoesIsTold) {
  all_train();
  rounds(11, {30'000, 50'000, 31'000}, 15'000);
  ASSERT_EQ(slow().size(), 1U);
  EXPECT_EQ(slow()[0].doing, Doing::kBetween);
}

TEST_F(StragglersTest, SmallAndPassingDifferencesAreNone) {
  all_train();
  rounds(20, {300, 1'900, 310});
  rounds(20, {30'000, 44'000, 31'000});
  for (int times = 0; times < 10; ++times) {
    rounds(9, {30'000, 90'000, 31'000});
    rounds(1, {30'000, 31'000, 31'000});
  }
  EXPECT_TRUE(slow().empty());
}

TEST_F(StragglersTest, WhoIsSlowAgainIsNamedAgain) {
  all_train();
  for (int times = 0; times < 2; ++times) {
    rounds(11, {30'000, 50'000, 31'000});
    rounds(11, {30'000, 30'000, 31'000});
  }
  EXPECT_EQ(slow().size(), 2U);
}

TEST_F(StragglersTest, WhoIsNamedIsNotNamedAgainAfterARecovery) {
  all_train();
  rounds(11, {30'000, 50'000, 31'000});
  step(Received{1, wire::GroupLost{machine_->generation()}});
  for (Link link = 1; link <= 3; ++link) {
    step(Received{link, wire::Report{machine_->generation(), version_, version_}});
  }
  ASSERT_EQ(machine_->stage(), wire::Stage::kRunning);
  rounds(20, {30'000, 50'000, 31'000});
  EXPECT_EQ(slow().size(), 1U);
}

TEST_F(StragglersTest, AHostAllOfWhoseRanksAreSlowIsNamed) {
  options_.world_size = 5;
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  for (Link link = 1; link <= 5; ++link) {
    come(link, who(cat(link - 1), 10 * link, 0, link <= 3 ? "host-1" : "host-2"));
  }
  for (Link link = 1; link <= 5; ++link) report(link);
  ASSERT_EQ(machine_->stage(), wire::Stage::kRunning);
  rounds(2, {30'000, 30'000, 31'000, 60'000, 31'000});  // One of them is so first.
  rounds(10, {30'000, 30'000, 31'000, 60'000, 70'000});
  ASSERT_EQ(slow().size(), 1U);
  EXPECT_EQ(slow()[0].rank, kNoRank);
  EXPECT_EQ(slow()[0].host, "host-2");
}

// What a server does in a step takes as long as the workers' whole step.
TEST_F(StragglersTest, AParameterServerIsNeitherNamedNorWaitedFor) {
  options_.servers = 1;
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  for (Link link = 1; link <= 3; ++link) {
    auto m = who(cat(link - 1), 10 * link);
    m.serves = link == 3;
    come(link, m);
  }
  for (Link link = 1; link <= 3; ++link) report(link);
  ASSERT_EQ(machine_->stage(), wire::Stage::kRunning);
  rounds(20, {30'000, 31'000, 500'000});
  EXPECT_TRUE(slow().empty());
  rounds(20, {30'000, 70'000});
  ASSERT_EQ(slow().size(), 1U);
  EXPECT_EQ(slow()[0].rank, 1);
}

TEST_F(StragglersTest, OfTwoRanksTheSlowerOneIsNamed) {
  options_.world_size = 2;
  machine_.emplace(options_, std::nullopt);
  step(Started{});
  for (Link link = 1; link <= 2; ++link) come(link, who(cat("w", link), 10 * link));
  for (Link link = 1; link <= 2; ++link) report(link);
  rounds(11, {50'000, 30'000});
  ASSERT_EQ(slow().size(), 1U);
  EXPECT_EQ(slow()[0].rank, 0);
}

}  // namespace
}  // namespace holdfast::controller
