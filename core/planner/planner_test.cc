// The planner on every small table, compared with a plain statement of what it must do.
#include "core/planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/text.h"

namespace holdfast::planner {
namespace {

// What one holder has; the same in all of its shards.
struct Held {
  Version version = kNoVersion;
  Version staged = kNoVersion;
  bool clean = true;
  bool finished = false;
};

// Whether each rank has a private part of its own, besides the state that all share.
enum class Private { kNone, kOwn };

Table table_of(const std::vector<Held>& ranks, Private has_private = Private::kNone,
               const std::optional<Held>& keeper = {}) {
  Table table{.ranks = static_cast<Rank>(ranks.size()), .finished = {}, .shards = {{"state", {}}}};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<Rank>(i);
    const Copy copy{rank, ranks[i].version, ranks[i].staged, ranks[i].clean};
    if (ranks[i].finished) table.finished.insert(rank);
    table.shards[0].copies.push_back(copy);
    if (has_private == Private::kOwn) {
      table.shards.push_back({cat("private ", rank), {copy}, true});
    }
  }
  if (keeper) {  // A holder that is not a rank, with a copy of the shared state only.
    table.shards[0].copies.push_back(
        {static_cast<Holder>(ranks.size()), keeper->version, keeper->staged, keeper->clean});
  }
  return table;
}

// Most ranks in a table. Three ranks have two hundred thousand tables.
#ifdef HOLDFAST_SANITIZED
constexpr std::size_t kMost = 2;
#else
constexpr std::size_t kMost = 3;
#endif

// Everything that a holder can have with versions 0 to 2.
std::vector<Held> possible_holdings() {
  std::vector<Held> all{{}, {2, 2, false, false}, {kNoVersion, kNoVersion, false, false}};
  for (Version version = 0; version <= 2; ++version) {
    for (const Version staged : {version, version + 1}) {
      for (const bool finished : {true, false}) all.push_back({version, staged, true, finished});
    }
  }
  return all;
}

template <class Visit>
void for_all_worlds(std::size_t ranks, const Visit& visit) {
  const auto possible = possible_holdings();
  std::vector<std::size_t> counter(ranks, 0);
  for (;;) {
    std::vector<Held> held;
    for (const auto i : counter) held.push_back(possible[i]);
    visit(held);
    std::size_t at = 0;
    while (at < ranks && ++counter[at] == possible.size()) counter[at++] = 0;
    if (at == ranks) return;
  }
}

// Visits every table: every world of for_all_worlds, with and without private parts, with every
// keeper, and with every version that may have been reached.
template <class Visit>
void for_all_tables(std::size_t ranks, const Visit& visit) {
  for_all_worlds(ranks, [&](const std::vector<Held>& held) {
    const auto visit_all = [&](Table table) {
      for (table.reached = 0; table.reached <= 2; ++table.reached) visit(table);
    };
    for (const Private has_private : {Private::kNone, Private::kOwn}) {
      visit_all(table_of(held, has_private));
      for (const Held& keeper : possible_holdings()) {
        if (!keeper.finished) visit_all(table_of(held, has_private, keeper));
      }
    }
  });
}

bool is_finished(const Table& table, Holder holder) {
  return table.finished.contains(holder);
}

bool can_give(const Table& table, const Copy& copy, Version v) {
  if (!copy.clean || copy.version == kNoVersion) return false;
  return copy.version == v ||
         (!is_finished(table, copy.holder) && copy.version + 1 == v && copy.staged == v);
}

// The plain statement: whether all ranks can get to `v` in all of their shards.
bool reachable(const Table& table, Version v) {
  for (const Shard& shard : table.shards) {
    for (const Copy& copy : shard.copies) {
      if (copy.holder >= table.ranks || can_give(table, copy, v)) continue;
      if (is_finished(table, copy.holder)) return false;
      const bool fresh = copy.clean && copy.version == kNoVersion;
      if (shard.starts_alone && v == 0 && table.reached == 0 && fresh) continue;
      if (std::none_of(shard.copies.begin(), shard.copies.end(),
                       [&](const Copy& c) { return can_give(table, c, v); })) {
        return false;
      }
    }
  }
  return true;
}

std::set<Version> versions_in(const Table& table) {
  std::set<Version> versions;
  for (const Shard& shard : table.shards) {
    for (const Copy& copy : shard.copies) {
      if (copy.version == kNoVersion) continue;
      versions.insert(copy.version);
      if (copy.staged <= table.reached) versions.insert(copy.staged);
    }
  }
  return versions;
}

bool nobody_holds_anything(const Table& table) {
  for (const Shard& shard : table.shards) {
    for (const Copy& copy : shard.copies) {
      if (copy.version != kNoVersion || !copy.clean) return false;
    }
  }
  return true;
}

const Copy* copy_of(const Shard& shard, Holder holder) {
  for (const Copy& copy : shard.copies) {
    if (copy.holder == holder) return &copy;
  }
  return nullptr;
}

const Order* order_of(const Plan& plan, std::size_t shard, Holder holder) {
  for (const Order& order : plan.orders) {
    if (order.shard == shard && order.holder == holder) return &order;
  }
  return nullptr;
}

// Whether `order` can be carried out, and brings its copy to the plan's version.
bool is_right(const Table& table, const Plan& plan, const Order& order) {
  const Shard& shard = table.shards[order.shard];
  const Copy* own = copy_of(shard, order.holder);
  if (own == nullptr) return false;
  const bool finished = is_finished(table, order.holder);
  switch (order.act) {
    case Act::kKeep:
      return own->clean && own->version == plan.version;
    case Act::kFinish:
      return can_give(table, *own, plan.version) && own->version != plan.version;
    case Act::kBegin:
      return own->clean && own->version == kNoVersion && plan.version == 0 && !finished;
    case Act::kReceive: {
      if (finished || order.source == order.holder) return false;
      const Copy* source = copy_of(shard, order.source);
      const Order* before = order_of(plan, order.shard, order.source);
      // The source is complete in time only if it does not receive as well.
      return source != nullptr && before != nullptr && before->act != Act::kReceive;
    }
    case Act::kLoad:
      return !finished && order.holder < table.ranks &&
             std::count(table.snapshots.begin(), table.snapshots.end(), plan.version) > 0;
  }
  return false;
}

TEST(Planner, EveryPlanBringsEveryRankToItsVersionInAllItsShards) {
  for (std::size_t ranks = 1; ranks <= kMost; ++ranks) {
    for_all_tables(ranks, [&](const Table& table) {
      const Plan made = plan(table);
      ASSERT_EQ(made.possible, made.lacking == kNoRank);
      if (!made.possible) {
        ASSERT_TRUE(made.orders.empty());
        return;
      }
      for (const Order& order : made.orders) ASSERT_TRUE(is_right(table, made, order));
      for (std::size_t s = 0; s < table.shards.size(); ++s) {
        for (const Copy& copy : table.shards[s].copies) {
          if (copy.holder < table.ranks) {
            ASSERT_NE(order_of(made, s, copy.holder), nullptr);
          }
        }
      }
    });
  }
}

TEST(Planner, ChoosesTheGreatestVersionThatAllCanReach) {
  for_all_tables(kMost, [&](const Table& table) {
    if (nobody_holds_anything(table)) return;
    std::optional<Version> greatest;
    for (const Version v : versions_in(table)) {
      if (reachable(table, v)) greatest = v;
    }
    const Plan made = plan(table);
    ASSERT_EQ(made.possible, greatest.has_value());
    if (greatest) {
      ASSERT_EQ(made.version, *greatest);
    }
  });
}

// All load, or none: what a rank still has does not mix with a snapshot.
TEST(Planner, LoadsASnapshotOnlyIfTheRanksCanNotReachThatVersionOrALaterOne) {
  for_all_tables(kMost, [&](Table table) {
    table.snapshots = {0, 1};
    std::optional<Version> greatest;
    for (const Version v : versions_in(table)) {
      if (reachable(table, v)) greatest = v;
    }
    const bool loads = table.finished.empty() && greatest.value_or(0) < 1;
    const Plan made = plan(table);
    ASSERT_EQ(made.loads(), loads);
    if (!loads) return;
    ASSERT_EQ(made.version, 1U);
    for (const Order& order : made.orders) {
      ASSERT_EQ(order.act, Act::kLoad);
      ASSERT_TRUE(is_right(table, made, order));
    }
    for (std::size_t s = 0; s < table.shards.size(); ++s) {
      for (const Copy& copy : table.shards[s].copies) {
        ASSERT_EQ(order_of(made, s, copy.holder) != nullptr, copy.holder < table.ranks);
      }
    }
  });
}

TEST(Planner, BeginsTheSharedStateOnlyWhereNobodyHoldsAnythingOrEverDid) {
  for_all_tables(kMost, [&](const Table& table) {
    const Plan made = plan(table);
    const bool begins = std::any_of(made.orders.begin(), made.orders.end(), [](const Order& order) {
      return order.act == Act::kBegin && order.shard == 0;
    });
    ASSERT_EQ(begins, nobody_holds_anything(table) && table.reached == 0);
  });
}

TEST(Planner, NeverWritesToTheMemoryOfARankThatHasFinished) {
  for_all_tables(kMost, [&](const Table& table) {
    if (nobody_holds_anything(table)) return;
    for (const Order& order : plan(table).orders) {
      if (is_finished(table, order.holder)) {
        ASSERT_EQ(order.act, Act::kKeep);
      }
    }
  });
}

TEST(Planner, SourcesShareTheSending) {
  const Plan made = plan(table_of({{3, 3}, {3, 3}, {}, {}}));
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(order_of(made, 0, 2)->act, Act::kReceive);
  EXPECT_EQ(order_of(made, 0, 3)->act, Act::kReceive);
  EXPECT_NE(order_of(made, 0, 2)->source, order_of(made, 0, 3)->source);
}

TEST(Planner, ReceivesEachShardFromAHolderOfThatShard) {
  Table table{.ranks = 4, .finished = {}, .shards = {{"a", {}}, {"b", {}}}};
  table.shards[0].copies = {{0, 5, 5}, {2}};
  table.shards[1].copies = {{1, 5, 5}, {2}, {3, 5, 5}};
  const Plan made = plan(table);
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(order_of(made, 0, 2)->source, 0);
  EXPECT_EQ(order_of(made, 1, 2)->source, 1);
}

TEST(Planner, AKeeperMakesTheStepFirstWhereARankReceivesItFromThere) {
  const Plan made = plan(table_of({{}, {}}, Private::kNone, Held{4, 5}));
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(made.version, 4U);  // No rank has 5, so it may not have been committed.
  const Plan later = plan(table_of({{}, {5, 5, true, true}}, Private::kNone, Held{4, 5}));
  ASSERT_TRUE(later.possible);
  EXPECT_EQ(later.version, 5U);
  EXPECT_EQ(order_of(later, 0, 0)->act, Act::kReceive);
}

TEST(Planner, SaysWhichRankCanNotFollowAndWhatItLacks) {
  const Plan made = plan(table_of({{5, 5}, {}}, Private::kOwn));
  EXPECT_FALSE(made.possible);
  EXPECT_EQ(made.lacking, 1);
  EXPECT_EQ(made.shard, "private 1");
  EXPECT_EQ(made.version, 5U);
}

TEST(Planner, SaysThatAllIsLostWhereNobodyHoldsAnythingAfterAStep) {
  Table table = table_of({{}, {}}, Private::kOwn);
  table.reached = 5;
  const Plan made = plan(table);
  EXPECT_FALSE(made.possible);
  EXPECT_EQ(made.version, 5U);
  EXPECT_EQ(made.shard, "state");
}

// The rank that reported version 5 has lost it.
TEST(Planner, MakesTheStagedStepThatIsKnownToBeCommitted) {
  Table table = table_of({{}, {4, 5}, {4, 5}});
  EXPECT_EQ(plan(table).version, 4U);
  table.reached = 5;
  const Plan made = plan(table);
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(made.version, 5U);
  EXPECT_EQ(order_of(made, 0, 1)->act, Act::kFinish);
  EXPECT_EQ(order_of(made, 0, 0)->act, Act::kReceive);
}

TEST(Planner, APrivatePartStartsAnewAtVersionZero) {
  const Plan made = plan(table_of({{0, 0}, {}}, Private::kOwn));
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(order_of(made, 0, 1)->act, Act::kReceive);
  EXPECT_EQ(order_of(made, 2, 1)->act, Act::kBegin);
}

TEST(Planner, FallsBackToAnOlderVersionRatherThanFail) {
  // Rank 1 has ended and can not be written to; rank 0 holds a later version.
  const Plan made = plan(table_of({{2, 2}, {1, 1, true, true}}));
  ASSERT_TRUE(made.possible);
  EXPECT_EQ(made.version, 1U);
}

}  // namespace
}  // namespace holdfast::planner
