// Chooses the rank of another host that holds a copy of a rank's private part, so that the private
// part outlives the loss of its host.
//
// Pure: every rank that has the address book computes the same holders.
#pragma once

#include <vector>

#include "base/ids.h"

namespace holdfast::planner {

// `domain_of`: by rank; ranks that fail together have the same number. Returns by rank its holder,
// a rank of another domain; kNoRank: there is no other domain.
//
// The domains are ordered by their lowest ranks, and each is held by the next one, the last by the
// first. The parts of a domain are spread evenly over the ranks of the next one.
[[nodiscard]] std::vector<Rank> holders(const std::vector<int>& domain_of);
// The same for a job whose ranks from `workers` on are parameter servers: a worker's holder is a
// worker, and a server's is a server.
[[nodiscard]] std::vector<Rank> holders(const std::vector<int>& domain_of, Rank workers);

}  // namespace holdfast::planner
