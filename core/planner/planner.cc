#include "core/planner/planner.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "base/assert.h"

namespace holdfast::planner {
namespace {

// The orders that make version 0 of a shard of which nobody holds anything: the lowest rank makes
// it for the others.
void begin(const Table& table, std::size_t s, Plan& plan) {
  const Shard& shard = table.shards[s];
  Holder first = kNoRank;
  for (const Copy& copy : shard.copies) {
    if (copy.holder < table.ranks && (first == kNoRank || copy.holder < first)) {
      first = copy.holder;
    }
  }
  for (const Copy& copy : shard.copies) {
    if (copy.holder >= table.ranks) continue;
    const bool begins = shard.starts_alone || copy.holder == first;
    plan.orders.push_back(
        {s, copy.holder, begins ? Act::kBegin : Act::kReceive, begins ? kNoRank : first});
  }
}

class Planner {
 public:
  Planner(const Table& table, Version version) : table_(table) {
    plan_.possible = true;
    plan_.version = version;
  }

  // The orders that bring every rank to the version, or what a rank lacks for it.
  Plan reach() {
    for (std::size_t s = 0; s < table_.shards.size(); ++s) reach(s);
    return std::move(plan_);
  }

 private:
  [[nodiscard]] bool is_finished(Holder holder) const { return table_.finished.contains(holder); }
  [[nodiscard]] bool is_rank(Holder holder) const { return holder < table_.ranks; }

  // How the copy reaches the version without another copy; kReceive: it can not.
  [[nodiscard]] Act alone(const Shard& shard, const Copy& copy) const {
    const Version to = plan_.version;
    const bool whole = copy.clean && copy.version != kNoVersion;
    if (whole && copy.version == to) return Act::kKeep;
    if (is_finished(copy.holder)) return Act::kReceive;
    if (whole && copy.version + 1 == to && copy.staged == to) return Act::kFinish;
    const bool is_new = copy.clean && copy.version == kNoVersion;
    // Once a step was made, nobody begins anew beside others that still have version 0.
    const bool may_begin = to == 0 && table_.reached == 0 && shard.starts_alone;
    if (may_begin && is_new && is_rank(copy.holder)) return Act::kBegin;
    return Act::kReceive;
  }

  // Whether nobody has made the shard yet, while ranks have begun with others: a parameter server
  // begins by itself.
  [[nodiscard]] bool is_unmade(const Shard& shard) const {
    return plan_.version == 0 && table_.reached == 0 && !shard.starts_alone &&
           std::all_of(shard.copies.begin(), shard.copies.end(),
                       [](const Copy& copy) { return copy.clean && copy.version == kNoVersion; });
  }

  void reach(std::size_t s) {
    const Shard& shard = table_.shards[s];
    if (is_unmade(shard)) return begin(table_, s, plan_);
    std::vector<Act> acts;
    std::vector<Holder> sources;
    for (const Copy& copy : shard.copies) {
      acts.push_back(alone(shard, copy));
      const bool can_give = acts.back() == Act::kKeep || acts.back() == Act::kFinish;
      if (can_give) sources.push_back(copy.holder);
    }
    std::size_t turn = 0;
    std::set<Holder> asked;
    for (std::size_t i = 0; i < acts.size(); ++i) {
      const Holder holder = shard.copies[i].holder;
      if (!is_rank(holder)) continue;
      Order order{s, holder, acts[i], kNoRank};
      if (order.act == Act::kReceive) {
        if (sources.empty() || is_finished(holder)) return give_up(holder, shard);
        order.source = sources[turn++ % sources.size()];
        asked.insert(order.source);
      }
      plan_.orders.push_back(order);
    }
    // A holder that is not a rank has to reach the version only if a rank receives it from there.
    for (std::size_t i = 0; i < acts.size(); ++i) {
      const Holder holder = shard.copies[i].holder;
      if (!is_rank(holder) && asked.contains(holder)) {
        plan_.orders.push_back({s, holder, acts[i], kNoRank});
      }
    }
  }

  void give_up(Rank rank, const Shard& shard) {
    if (!std::exchange(plan_.possible, false)) return;
    plan_.lacking = rank;
    plan_.shard = shard.name;
  }

  const Table& table_;
  Plan plan_;
};

// All ranks begin again from a snapshot.
Plan load(const Table& table, Version version) {
  Plan plan{.possible = true, .version = version, .orders = {}, .lacking = kNoRank, .shard = {}};
  for (std::size_t s = 0; s < table.shards.size(); ++s) {
    for (const Copy& copy : table.shards[s].copies) {
      if (copy.holder < table.ranks) plan.orders.push_back({s, copy.holder, Act::kLoad, kNoRank});
    }
  }
  return plan;
}

// Version 0, when nobody holds anything.
Plan begin(const Table& table) {
  Plan plan{.possible = true, .version = 0, .orders = {}, .lacking = kNoRank, .shard = {}};
  for (std::size_t s = 0; s < table.shards.size(); ++s) begin(table, s, plan);
  return plan;
}

}  // namespace

Plan plan(const Table& table) {
  HF_ASSERT(table.ranks > 0);
  std::set<Version, std::greater<>> versions;
  bool damaged = false;
  for (const Shard& shard : table.shards) {
    for (const Copy& copy : shard.copies) {
      damaged = damaged || !copy.clean;
      if (copy.version == kNoVersion) continue;
      versions.insert(copy.version);
      if (copy.staged <= table.reached) versions.insert(copy.staged);
    }
  }
  std::set<Version> loadable;
  if (table.finished.empty()) loadable.insert(table.snapshots.begin(), table.snapshots.end());
  if (versions.empty() && !damaged && table.reached == 0 && loadable.empty()) return begin(table);
  auto all = versions;
  all.insert(loadable.begin(), loadable.end());
  Plan best;
  for (const Version version : all) {
    if (!versions.contains(version)) return load(table, version);
    Plan candidate = Planner(table, version).reach();
    if (candidate.possible) return candidate;
    if (loadable.contains(version)) return load(table, version);
    candidate.orders.clear();
    if (best.lacking == kNoRank) best = std::move(candidate);
  }
  if (best.lacking == kNoRank) {  // No holder has a version, or all copies are damaged.
    best.lacking = 0;
    best.version = table.reached;
    best.shard = table.shards.front().name;
  }
  return best;
}

}  // namespace holdfast::planner
