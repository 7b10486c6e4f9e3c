// Who holds whose private part, so that it outlives a host.
//
// Pure. The same on every rank that knows where all are.
#pragma once

#include <vector>

#include "base/ids.h"

namespace holdfast::planner {

// `domain_of`: by rank, equal numbers for ranks that are lost together. By rank: the rank of
// another domain that holds this one's private part; kNoRank: there is no other domain.
//
// The next domain in the order of their first ranks holds a domain's parts, each of its ranks as
// many as any other, or one more.
[[nodiscard]] std::vector<Rank> holders(const std::vector<int>& domain_of);

}  // namespace holdfast::planner
