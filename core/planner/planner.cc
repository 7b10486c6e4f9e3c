#include "core/planner/planner.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/assert.h"

namespace holdfast::planner {
namespace {

bool holds(const Holding& holding, Version version) {
  return holding.version == version;
}

bool can_finish(const Holding& holding, Version version) {
  return holding.present && holding.version != kNoVersion && holding.version + 1 == version &&
         holding.staged == version;
}

bool is_in(const Shard& shard, Rank rank) {
  return std::find(shard.holders.begin(), shard.holders.end(), rank) != shard.holders.end();
}

// Ranks that hold every shard of `rank` and are, or will be, at `version`.
std::vector<Rank> sources_for(Rank rank, Version version, const std::vector<Holding>& holdings,
                              const std::vector<Shard>& shards) {
  std::vector<Rank> sources;
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    const auto other = static_cast<Rank>(i);
    if (other == rank) continue;
    if (!holds(holdings[i], version) && !can_finish(holdings[i], version)) continue;
    const bool whole = std::all_of(shards.begin(), shards.end(), [&](const Shard& shard) {
      return !is_in(shard, rank) || is_in(shard, other);
    });
    if (whole) sources.push_back(other);
  }
  return sources;
}

// Orders that bring all to `version`, or the reason why not.
Plan reach(Version version, const std::vector<Holding>& holdings,
           const std::vector<Shard>& shards) {
  Plan plan{.possible = true, .version = version, .orders = std::vector<Order>(holdings.size())};
  std::size_t turn = 0;
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    const auto rank = static_cast<Rank>(i);
    if (holds(holdings[i], version)) continue;
    if (can_finish(holdings[i], version)) {
      plan.orders[i].act = Act::kFinish;
      continue;
    }
    const auto sources = sources_for(rank, version, holdings, shards);
    if (sources.empty() || !holdings[i].present) {
      return {.possible = false, .version = version, .orders = {}, .lacking = rank};
    }
    plan.orders[i] = {Act::kReceive, sources[turn++ % sources.size()]};
  }
  return plan;
}

Plan begin(const std::vector<Holding>& holdings) {
  Plan plan{.possible = true,
            .version = 0,
            .orders = std::vector<Order>(holdings.size(), Order{Act::kReceive, 0})};
  plan.orders[0] = {Act::kBegin, kNoRank};
  return plan;
}

}  // namespace

Plan plan(const std::vector<Holding>& holdings, const std::vector<Shard>& shards) {
  HF_ASSERT(!holdings.empty());
  std::set<Version, std::greater<>> versions;
  for (const auto& holding : holdings) {
    if (holding.version != kNoVersion) versions.insert(holding.version);
  }
  if (versions.empty()) return begin(holdings);
  Plan best;
  for (const Version version : versions) {
    Plan candidate = reach(version, holdings, shards);
    if (candidate.possible) return candidate;
    if (best.lacking == kNoRank) best = std::move(candidate);
  }
  return best;
}

std::vector<Shard> replicated(std::int32_t world_size) {
  Shard all{"all", {}};
  for (Rank rank = 0; rank < world_size; ++rank) all.holders.push_back(rank);
  return {all};
}

}  // namespace holdfast::planner
