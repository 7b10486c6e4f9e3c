#include "core/planner/holders.h"

#include <cstddef>
#include <map>

namespace holdfast::planner {

std::vector<Rank> holders(const std::vector<int>& host_of) {
  std::vector<std::vector<Rank>> hosts;  // In the order of their first ranks.
  std::map<int, std::size_t> place_of;
  std::vector<std::size_t> place;   // By rank: its host,
  std::vector<std::size_t> number;  // and which of its ranks it is.
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto at = place_of.try_emplace(host_of[rank], hosts.size()).first->second;
    if (at == hosts.size()) hosts.emplace_back();
    place.push_back(at);
    number.push_back(hosts[at].size());
    hosts[at].push_back(static_cast<Rank>(rank));
  }
  std::vector<Rank> holder(host_of.size(), kNoRank);
  if (hosts.size() < 2) return holder;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    const auto& next = hosts[(place[rank] + 1) % hosts.size()];
    holder[rank] = next[number[rank] % next.size()];
  }
  return holder;
}

}  // namespace holdfast::planner
