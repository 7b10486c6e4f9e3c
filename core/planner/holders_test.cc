#include "core/planner/holders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace holdfast::planner {
namespace {

TEST(Holders, AreOnTheNextHost) {
  EXPECT_EQ(holders({0, 0, 1, 1}), (std::vector<Rank>{2, 3, 0, 1}));
  EXPECT_EQ(holders({7, 7, 3, 3, 5, 5}), (std::vector<Rank>{2, 3, 4, 5, 0, 1}));
  EXPECT_EQ(holders({0, 1, 0, 1}), (std::vector<Rank>{1, 0, 3, 2}));
}

TEST(Holders, ThereAreNoneOnOneHost) {
  EXPECT_EQ(holders({4, 4, 4}), (std::vector<Rank>(3, kNoRank)));
  EXPECT_TRUE(holders({}).empty());
}

TEST(Holders, OfServersAreServers) {
  EXPECT_EQ(holders({0, 1, 0, 1}, 2), (std::vector<Rank>{1, 0, 3, 2}));
  EXPECT_EQ(holders({0, 1, 2, 2}, 2), (std::vector<Rank>{1, 0, kNoRank, kNoRank}));
  EXPECT_EQ(holders({0, 0, 0, 1, 2}, 2), (std::vector<Rank>{kNoRank, kNoRank, 3, 4, 2}));
  EXPECT_EQ(holders({0, 1}, 2), holders({0, 1}));
}

// Every layout of six ranks on up to four hosts.
TEST(Holders, LieElsewhereAndShareTheWork) {
  for (int code = 0; code < 4096; ++code) {
    std::vector<int> host_of;
    for (int rank = 0, rest = code; rank < 6; ++rank, rest /= 4) host_of.push_back(rest % 4);
    const auto holder = holders(host_of);
    std::map<Rank, int> wards;
    std::map<int, std::set<int>> hosts_of_wards;
    for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
      if (std::set(host_of.begin(), host_of.end()).size() == 1) continue;
      ASSERT_GE(holder[rank], 0);
      const auto at = static_cast<std::size_t>(holder[rank]);
      ASSERT_NE(host_of[at], host_of[rank]) << code;
      ++wards[holder[rank]];
      hosts_of_wards[host_of[at]].insert(host_of[rank]);
    }
    for (const auto& [host, others] : hosts_of_wards) {
      ASSERT_EQ(others.size(), 1U) << code;  // All wards of a host's ranks are on one other host.
      int least = 6, most = 0;
      for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
        if (host_of[rank] != host) continue;
        const int count = wards[static_cast<Rank>(rank)];
        least = std::min(least, count);
        most = std::max(most, count);
      }
      ASSERT_LE(most - least, 1) << code;
    }
  }
}

}  // namespace
}  // namespace holdfast::planner
