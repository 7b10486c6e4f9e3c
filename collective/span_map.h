// SpanMap: which ranks of a group lie on which host, and which ranks are linked. A pure function of
// its arguments, so that the maps of all ranks fit together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collective/links.h"

namespace holdfast::collective {

// Consecutive ranks [begin, end) of one host.
struct Run {
  int begin = 0;
  int end = 0;
  int host = 0;
};

// Hosts are numbered in the order of their first ranks, and the ranks of each host from 0 on. The
// first ranks of all hosts are lane 0, the second ranks lane 1, and so on; there are as many lanes
// as the smallest host has ranks. Hop s of a lane is the link between the lane's ranks on the hosts
// of run s and of run s + 1.
struct SpanMap {
  SpanMap(std::span<const int> host_by_rank, int rank);

  [[nodiscard]] int size() const { return static_cast<int>(host_of.size()); }  // All ranks.
  [[nodiscard]] int rank() const { return mates()[static_cast<std::size_t>(local)]; }
  [[nodiscard]] int hosts() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] const std::vector<int>& mates() const {  // The ranks of this host.
    return ranks[static_cast<std::size_t>(host)];
  }
  [[nodiscard]] int local_size() const { return static_cast<int>(mates().size()); }
  [[nodiscard]] bool has_mates() const { return local_size() > 1; }  // Besides this rank.
  [[nodiscard]] bool leads_lane() const { return local < lanes; }
  [[nodiscard]] bool leads_host() const { return local == 0; }
  [[nodiscard]] std::size_t rounds() const;  // The rounds of a meeting (SpanPart).
  [[nodiscard]] int host_at(int distance) const { return (host + distance + hosts()) % hosts(); }

  // The links of this rank: for each round of a meeting one to send on and one to receive on; then
  // its hops.
  [[nodiscard]] std::vector<Wanted> wanted(std::span<const Rank> world_ranks) const;
  [[nodiscard]] std::vector<std::size_t> hops() const;  // The hops of which this rank is an end.

  std::vector<int> host_of;             // By rank.
  std::vector<int> local_of;            // By rank: its number on its host.
  std::vector<std::vector<int>> ranks;  // By host; ascending.
  std::vector<Run> runs;
  int host;   // This rank's.
  int local;  // This rank's number there.
  int lanes;
};

}  // namespace holdfast::collective
