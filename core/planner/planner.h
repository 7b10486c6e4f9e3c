// After a fault, chooses the version from which every rank goes on, and how each gets there.
//
// Pure. Why it is right: docs/protocol/recovery.md, "Which version".
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "wire/formation.h"

namespace holdfast::planner {

// Number of a holder of copies. The ranks have their own numbers; holders from Table::ranks on are
// not ranks and only keep copies.
using Holder = Rank;

// What one holder has of a shard.
struct Copy {
  Holder holder = kNoRank;
  Version version = kNoVersion;  // kNoVersion: nothing (fresh or lost memory).
  Version staged = kNoVersion;   // `version`, or `version` + 1 if that step is staged.
  bool clean = true;             // false: the copy is damaged and of no use.
  bool operator==(const Copy&) const = default;
};

// A named part of the state, and all copies of it. A rank with a copy needs the shard.
struct Shard {
  std::string name;
  std::vector<Copy> copies;  // At most one for each holder.
  // Each rank makes version 0 of this shard itself, without a copy of another rank, until a step
  // was made.
  bool starts_alone = false;
};

struct Table {
  Rank ranks = 0;             // Holders from this number on are not ranks and need no shard.
  std::set<Holder> finished;  // Ranks whose training has ended: their copies can only be read.
  std::vector<Shard> shards;
  Version reached = 0;  // Newest version known to be committed, even if nobody has it now.
  std::vector<Version> snapshots = {};  // All ranks could begin again from each of these.
};

using wire::Act;

// What a holder does with its copy of a shard.
struct Order {
  std::size_t shard = 0;
  Holder holder = kNoRank;
  Act act = Act::kKeep;
  Holder source = kNoRank;  // kReceive: the holder to copy from. Possible sources take turns.
};

struct Plan {
  bool possible = false;
  Version version = 0;
  std::vector<Order> orders;  // One for each copy of a rank, and for each other source.
  Rank lacking = kNoRank;     // If impossible: a rank that can not reach the version,
  std::string shard;          // and the shard that it lacks.

  // Whether all ranks begin again from a snapshot.
  [[nodiscard]] bool loads() const { return !orders.empty() && orders.front().act == Act::kLoad; }
};

// Chooses the greatest version v that every rank can reach in each of its shards. Tried are the
// versions that some holder has, and those that are staged and not greater than `reached`.
//
// A copy reaches v
// - as it is, if it is at v;
// - by its staged update, if it is at v-1 with step v staged. The copy alone suffices: v was
//   committed somewhere, so all ranks had staged it and all gradients are complete;
// - by receiving v from a holder whose copy reaches v in one of these two ways.
//
// A version of a snapshot can be reached by all ranks together: each gives up what it has (kLoad).
// That is the last rung: it is not chosen if the ranks can reach the same or a greater version by
// themselves, nor if a rank's training has ended.
//
// If nobody holds anything, there is no snapshot, and no step was ever committed, the plan begins
// version 0: the lowest rank of each shard makes it and the others receive it, or each rank makes
// its own (starts_alone).
//
// possible == false: no version will do.
[[nodiscard]] Plan plan(const Table& table);

}  // namespace holdfast::planner
