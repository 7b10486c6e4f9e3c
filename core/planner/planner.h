// After a fault, chooses the version from which every rank goes on, and how each gets there.
//
// Pure. Why it is right: docs/protocol/recovery.md, "Which version".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "wire/formation.h"

namespace holdfast::planner {

// What one rank's arena holds, told by the rank itself or by the successor that opened its arena.
struct Holding {
  Version version = kNoVersion;  // kNoVersion: nothing (a fresh or lost arena).
  Version staged = kNoVersion;   // version, or version + 1 where that step was staged.
  bool present = true;           // false: its process has finished; the arena can be read only.
};

// A named range of the state and the ranks that hold a copy. Data parallel: one shard, held by all.
struct Shard {
  std::string name;
  std::vector<Rank> holders;
};

using wire::Act;

struct Order {
  Act act = Act::kKeep;
  Rank source = kNoRank;  // kReceive: from whom. A shard's own holders share the sending.
};

struct Plan {
  bool possible = false;
  Version version = 0;
  std::vector<Order> orders;  // By rank.
  Rank lacking = kNoRank;     // Where impossible: the rank that can not reach the version.
};

// The greatest version v that some rank holds and every rank can reach: it holds v already, or
// holds v-1 with step v staged (v was committed somewhere, so all ranks had staged it and all
// gradients are complete: the update can be made from its own arena), or can copy from a rank that
// holds the same shards at v. If no rank holds anything, the lowest rank begins version 0 and the
// others copy it.
//
// Requires: every rank is in at least one shard. Ends with possible == false if no version will do.
[[nodiscard]] Plan plan(const std::vector<Holding>& holdings, const std::vector<Shard>& shards);

// One shard that all of `world_size` ranks hold.
[[nodiscard]] std::vector<Shard> replicated(std::int32_t world_size);

}  // namespace holdfast::planner
