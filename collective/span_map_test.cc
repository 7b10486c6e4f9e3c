// Which ranks are linked: the links that a rank asks for fit those that its peers ask for.
#include "collective/span_map.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "base/prng.h"

namespace holdfast::collective {
namespace {

TEST(SpanMap, NumbersHostsLanesAndRuns) {
  const std::vector<int> hosts = {7, 7, 3, 7, 3, 3, 3};
  const SpanMap map(hosts, 4);
  EXPECT_EQ(map.hosts(), 2);
  EXPECT_EQ(map.host, 1);
  EXPECT_EQ(map.local, 1);
  EXPECT_EQ(map.lanes, 3);
  EXPECT_EQ(map.mates(), (std::vector<int>{2, 4, 5, 6}));
  ASSERT_EQ(map.runs.size(), 4U);
  EXPECT_EQ(map.runs[3].begin, 4);
  EXPECT_EQ(map.runs[3].end, 7);
  EXPECT_EQ(map.hops(), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_TRUE(SpanMap(hosts, 6).hops().empty()) << "the other host has no fourth rank";
}

// In random layouts, both ranks of a link ask for it, and exactly one of the two connects.
TEST(SpanMap, BothEndsOfALinkWantIt) {
  for (std::uint64_t round = 0; round < 300; ++round) {
    const std::size_t size = 2 + derive(1, round) % 20;
    const std::uint64_t hosts = 2 + derive(2, round) % 9;
    std::vector<int> host_of;
    for (std::size_t k = 0; k < size; ++k) {
      host_of.push_back(static_cast<int>(derive(3, round, k) % hosts));
    }
    host_of.front() = 100;  // At least two.
    std::map<std::tuple<Rank, Rank, std::uint32_t>, int> ends;
    int links = 0;
    for (int rank = 0; rank < static_cast<int>(size); ++rank) {
      for (const Wanted& w : SpanMap(host_of, rank).wanted({})) {
        EXPECT_NE(host_of[static_cast<std::size_t>(rank)],
                  host_of[static_cast<std::size_t>(w.peer)]);
        const auto key = std::tuple(std::min(rank, w.peer), std::max(rank, w.peer), w.channel);
        // The two ends of a link must agree on whether the lower rank connects.
        const bool lower_connects = w.connects == (rank < w.peer);
        ends[key] += lower_connects ? 1 : 100;
        ++links;
      }
    }
    EXPECT_EQ(ends.size() * 2, static_cast<std::size_t>(links)) << "a channel is used twice";
    for (const auto& [key, sum] : ends) EXPECT_TRUE(sum == 2 || sum == 200) << "round " << round;
  }
}

}  // namespace
}  // namespace holdfast::collective
