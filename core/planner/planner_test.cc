// The planner on every small input, against a plain statement of what it must do.
#include "core/planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace holdfast::planner {
namespace {

// All that one rank's arena can hold, as far as versions 0 to 2 go.
std::vector<Holding> possible_holdings() {
  std::vector<Holding> all{{kNoVersion, kNoVersion, true}};
  for (Version version = 0; version <= 2; ++version) {
    for (const Version staged : {version, version + 1}) {
      for (const bool present : {true, false}) all.push_back({version, staged, present});
    }
  }
  return all;
}

template <class Visit>
void for_all_worlds(std::size_t ranks, const Visit& visit) {
  const auto possible = possible_holdings();
  std::vector<std::size_t> counter(ranks, 0);
  for (;;) {
    std::vector<Holding> holdings;
    for (const auto i : counter) holdings.push_back(possible[i]);
    visit(holdings);
    std::size_t at = 0;
    while (at < ranks && ++counter[at] == possible.size()) counter[at++] = 0;
    if (at == ranks) return;
  }
}

bool at_or_before(const Holding& holding, Version version) {
  return holding.version == kNoVersion || holding.version <= version;
}

// What the arenas hold after each rank has done as it was told.
bool reaches(const std::vector<Holding>& before, const Plan& plan) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto& order = plan.orders[i];
    const auto& own = before[i];
    switch (order.act) {
      case Act::kKeep:
        if (own.version != plan.version) return false;
        break;
      case Act::kFinish:
        if (!own.present || own.version + 1 != plan.version || own.staged != plan.version) {
          return false;
        }
        break;
      case Act::kBegin:
        if (own.version != kNoVersion || plan.version != 0) return false;
        break;
      case Act::kReceive: {
        if (!own.present || order.source == static_cast<Rank>(i)) return false;
        const auto from = plan.orders[static_cast<std::size_t>(order.source)].act;
        if (from == Act::kReceive) return false;  // It would not be whole in time.
        break;
      }
    }
  }
  return true;
}

TEST(Planner, EveryPlanBringsEveryRankToItsVersion) {
  for (std::size_t ranks = 1; ranks <= 4; ++ranks) {
    for_all_worlds(ranks, [&](const std::vector<Holding>& holdings) {
      const Plan made = plan(holdings, replicated(static_cast<std::int32_t>(ranks)));
      EXPECT_EQ(made.possible, made.lacking == kNoRank);
      if (made.possible) {
        ASSERT_TRUE(reaches(holdings, made));
      }
    });
  }
}

TEST(Planner, ChoosesTheGreatestVersionThatAllCanReach) {
  for_all_worlds(3, [&](const std::vector<Holding>& holdings) {
    const bool all_present =
        std::all_of(holdings.begin(), holdings.end(), [](const auto& h) { return h.present; });
    const bool none_holds = std::all_of(holdings.begin(), holdings.end(),
                                        [](const auto& h) { return h.version == kNoVersion; });
    if (!all_present || none_holds) return;
    const Plan made = plan(holdings, replicated(3));
    // Whoever is there can copy: so nothing that any rank holds is left behind.
    ASSERT_TRUE(made.possible);
    for (const auto& holding : holdings) ASSERT_TRUE(at_or_before(holding, made.version));
  });
}

TEST(Planner, BeginsAtVersionZeroOnlyWhereNobodyHoldsAnything) {
  for_all_worlds(3, [&](const std::vector<Holding>& holdings) {
    const Plan made = plan(holdings, replicated(3));
    const bool begins = std::any_of(made.orders.begin(), made.orders.end(),
                                    [](const auto& order) { return order.act == Act::kBegin; });
    const bool none_holds = std::all_of(holdings.begin(), holdings.end(),
                                        [](const auto& h) { return h.version == kNoVersion; });
    ASSERT_EQ(begins, none_holds);
  });
}

TEST(Planner, NeverWritesToTheArenaOfARankThatHasFinished) {
  for_all_worlds(3, [&](const std::vector<Holding>& holdings) {
    const Plan made = plan(holdings, replicated(3));
    for (std::size_t i = 0; made.possible && i < holdings.size(); ++i) {
      if (!holdings[i].present) {
        ASSERT_EQ(made.orders[i].act, Act::kKeep);
      }
    }
  });
}

TEST(Planner, SourcesShareTheSending) {
  std::vector<Holding> holdings{{3, 3}, {3, 3}, {kNoVersion, kNoVersion}, {kNoVersion, kNoVersion}};
  const Plan made = plan(holdings, replicated(4));
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(made.orders[2].act, Act::kReceive);
  EXPECT_EQ(made.orders[3].act, Act::kReceive);
  EXPECT_NE(made.orders[2].source, made.orders[3].source);
}

TEST(Planner, CopiesOnlyFromAHolderOfTheSameShards) {
  const std::vector<Shard> shards{{"a", {0, 2}}, {"b", {1, 3}}};
  const std::vector<Holding> holdings{{5, 5}, {5, 5}, {kNoVersion, kNoVersion}, {5, 5}};
  const Plan made = plan(holdings, shards);
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(made.orders[2].act, Act::kReceive);
  EXPECT_EQ(made.orders[2].source, 0);
}

TEST(Planner, SaysWhichRankCanNotFollowWhereAShardIsLost) {
  const std::vector<Shard> shards{{"a", {0}}, {"b", {1}}};
  const Plan made = plan({{5, 5}, {kNoVersion, kNoVersion}}, shards);
  EXPECT_FALSE(made.possible);
  EXPECT_EQ(made.lacking, 1);
  EXPECT_EQ(made.version, 5U);
}

TEST(Planner, FallsBackToAnOlderVersionRatherThanFail) {
  // Rank 1 is gone and can not be written to; rank 0 holds more than it.
  const Plan made = plan({{2, 2, true}, {1, 1, false}}, replicated(2));
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(made.version, 1U);
}

}  // namespace
}  // namespace holdfast::planner
