#include "core/planner/holders.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>

namespace holdfast::planner {

std::vector<Rank> holders(const std::vector<int>& domain_of) {
  std::vector<std::vector<Rank>> domains;  // In the order of their lowest ranks.
  std::map<int, std::size_t> place_of;
  std::vector<std::size_t> place;   // By rank: the index of its domain,
  std::vector<std::size_t> number;  // and its own index in that domain.
  for (std::size_t rank = 0; rank < domain_of.size(); ++rank) {
    const auto at = place_of.try_emplace(domain_of[rank], domains.size()).first->second;
    if (at == domains.size()) domains.emplace_back();
    place.push_back(at);
    number.push_back(domains[at].size());
    domains[at].push_back(static_cast<Rank>(rank));
  }
  std::vector<Rank> holder(domain_of.size(), kNoRank);
  if (domains.size() < 2) return holder;
  for (std::size_t rank = 0; rank < domain_of.size(); ++rank) {
    const auto& next = domains[(place[rank] + 1) % domains.size()];
    holder[rank] = next[number[rank] % next.size()];
  }
  return holder;
}

std::vector<Rank> holders(const std::vector<int>& domain_of, Rank workers) {
  const auto first = domain_of.begin() + std::min<std::ptrdiff_t>(workers, std::ssize(domain_of));
  auto all = holders({domain_of.begin(), first});
  for (const Rank holder : holders({first, domain_of.end()})) {
    all.push_back(holder == kNoRank ? kNoRank : workers + holder);
  }
  return all;
}

}  // namespace holdfast::planner
