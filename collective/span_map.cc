#include "collective/span_map.h"

#include <algorithm>
#include <map>

namespace holdfast::collective {
namespace {

// Channels of hops have this bit, which those of rounds never have.
constexpr std::uint32_t kHopChannel = 1U << 30;
constexpr int kRoundShift = 16;  // In a round's channel: the round, above the sending host.

}  // namespace

SpanMap::SpanMap(std::span<const int> host_by_rank, int rank) {
  std::map<int, int> number;
  for (const int given : host_by_rank) {
    const int r = static_cast<int>(host_of.size());
    const int h = number.try_emplace(given, static_cast<int>(number.size())).first->second;
    if (h == static_cast<int>(ranks.size())) ranks.emplace_back();
    auto& there = ranks[static_cast<std::size_t>(h)];
    host_of.push_back(h);
    local_of.push_back(static_cast<int>(there.size()));
    there.push_back(r);
    if (runs.empty() || runs.back().host != h) runs.push_back({r, r, h});
    runs.back().end = r + 1;
  }
  host = host_of[static_cast<std::size_t>(rank)];
  local = local_of[static_cast<std::size_t>(rank)];
  lanes = static_cast<int>(host_by_rank.size());
  for (const auto& there : ranks) lanes = std::min(lanes, static_cast<int>(there.size()));
}

std::size_t SpanMap::rounds() const {
  std::size_t rounds = 0;
  while ((1 << rounds) < hosts()) ++rounds;
  return rounds;
}

std::vector<std::size_t> SpanMap::hops() const {
  std::vector<std::size_t> mine;
  for (std::size_t s = 0; leads_lane() && s + 1 < runs.size(); ++s) {
    if (runs[s].host == host || runs[s + 1].host == host) mine.push_back(s);
  }
  return mine;
}

std::vector<Wanted> SpanMap::wanted(std::span<const Rank> world_ranks) const {
  std::vector<Wanted> links;
  const auto in_world = [&](int at_host, int number) {
    const int r = ranks[static_cast<std::size_t>(at_host)][static_cast<std::size_t>(number)];
    return world_ranks.empty() ? Rank{r} : world_ranks[static_cast<std::size_t>(r)];
  };
  const auto channel_of = [](std::size_t round, int sender) {
    return static_cast<std::uint32_t>(round << kRoundShift) | static_cast<std::uint32_t>(sender);
  };
  for (std::size_t k = 0; leads_host() && k < rounds(); ++k) {
    const int to = host_at(1 << k);
    const int from = host_at(-(1 << k));
    links.push_back({in_world(to, 0), channel_of(k, host), true});
    links.push_back({in_world(from, 0), channel_of(k, from), false});
  }
  for (const std::size_t s : hops()) {
    const bool first = runs[s].host == host;
    links.push_back({in_world(runs[first ? s + 1 : s].host, local),
                     kHopChannel | static_cast<std::uint32_t>(s), first});
  }
  return links;
}

}  // namespace holdfast::collective
