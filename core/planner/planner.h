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

// Who holds copies: the ranks, each under its own number, and after them whoever keeps copies only.
using Holder = Rank;

// What a holder holds of a shard.
struct Copy {
  Holder holder = kNoRank;
  Version version = kNoVersion;  // kNoVersion: nothing (fresh or lost memory).
  Version staged = kNoVersion;   // version, or version + 1 where that step was staged.
  bool clean = true;             // false: what is there is damaged, and good for nothing.
  bool operator==(const Copy&) const = default;
};

// A named part of the state, and all copies of it. A rank with a copy needs the shard.
struct Shard {
  std::string name;
  std::vector<Copy> copies;   // One at most of each holder.
  bool starts_alone = false;  // Its version 0 is each rank's own: nobody needs another's for that.
};

struct Table {
  Rank ranks = 0;             // Holders from this number on are no ranks: they need nothing.
  std::set<Holder> finished;  // Their processes have ended: their copies can be read only.
  std::vector<Shard> shards;
  Version reached = 0;  // Some rank is known to have committed it, whoever has it still.
};

using wire::Act;

// What a holder does with its copy of a shard.
struct Order {
  std::size_t shard = 0;
  Holder holder = kNoRank;
  Act act = Act::kKeep;
  Holder source = kNoRank;  // kReceive: from whom. Those who can give it share the sending.
};

struct Plan {
  bool possible = false;
  Version version = 0;
  std::vector<Order> orders;  // One for each copy of a rank, and for each other that is a source.
  Rank lacking = kNoRank;     // Where impossible: a rank that can not reach the version,
  std::string shard;          // and what it lacks.
};

// The greatest version v that some holder has, or has staged where v was reached, and that every
// rank can reach in each of its shards: its copy is at v already, or at v-1 with step v staged (v
// was committed somewhere, so all ranks had staged it and all gradients are complete: the update
// can be made from the copy alone), or it can receive it from a holder of which one of these is
// true. If nobody holds anything and no step was ever committed, the lowest rank of each shard
// begins version 0 and the others receive it.
//
// Ends with possible == false if no version will do.
[[nodiscard]] Plan plan(const Table& table);

}  // namespace holdfast::planner
