// What dead processes have left on one or several hosts becomes a snapshot of the newest step that
// all can have, or of none.
#include "runtime/agent/last_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <vector>

#include "arena/arena.h"
#include "arena/testing.h"
#include "base/number.h"
#include "base/text.h"
#include "runtime/jobs/arena_parts.h"
#include "runtime/jobs/snapshots.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {
namespace {

using arena::Arena;

constexpr std::uint64_t kRun = 7;
const arena::Layout kModel{
    .parameters = {{"w", 1000}}, .optimizer = arena::Optimizer::kSgd, .private_bytes = 100};
constexpr Duration kLong = std::chrono::minutes(2);

struct Rest {
  Rank rank = 0;
  Version version = 0;
  bool is_staged = false;  // The next one.
  bool is_former = false;  // It has its place elsewhere by now.
};
// The arenas of a host. Those of a version have the same bytes, however they came to it.
using Host = std::vector<Rest>;

class LastSnapshotTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string host(std::size_t i) const { return directory_.file(cat("host", i)); }

  // The parameters of all ranks are alike, and the private bytes are not.
  static void fill(Arena& arena, Rank rank, Version version) {
    for (auto& byte : arena.private_bytes(version)) {
      byte = static_cast<std::byte>(10 * rank + static_cast<Rank>(version));
    }
  }
  static void begin(Arena& arena, Rank rank) {
    for (float& w : arena.parameter(0)) w = 3;
    fill(arena, rank, 0);
    arena.begin(0, {}, {});
  }
  static void make_step(Arena& arena, Rank rank, bool is_finished) {
    const Version next = arena.version() + 1;
    fill(arena, rank, next);
    for (float& g : arena.gradient(0)) g = static_cast<float>(next);
    arena.stage(
        next,
        {arena.private_bytes(next), {.learning_rate = 0.5}, {.index = next, .samples = next}});
    if (is_finished) arena.finish();
  }
  void leave(const std::vector<Host>& hosts) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      std::filesystem::create_directories(host(i));
      for (const Rest& rest : hosts[i]) {
        auto arena = Arena::open(cat(host(i), "/rank-", rest.rank, ".arena"), kModel, kRun);
        ASSERT_TRUE(arena) << arena.error().what;
        begin(*arena, rest.rank);
        while (arena->version() < rest.version) make_step(*arena, rest.rank, true);
        if (rest.is_staged) make_step(*arena, rest.rank, false);
      }
    }
  }
  [[nodiscard]] SnapshotWriter::Options options(std::size_t i) const {
    return {.folder = folder_,
            .job_directory = host(i),
            .job = "job",
            .program = "toy",
            .world_size = kRanks};
  }
  // Each host in a thread of its own.
  std::vector<Result<std::string>> end(const std::vector<Host>& hosts, Duration time = kLong) {
    leave(hosts);
    std::vector<std::future<Result<std::string>>> ends;
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      std::vector<Rank> ranks;
      for (const Rest& rest : hosts[i]) {
        if (!rest.is_former) ranks.push_back(rest.rank);
      }
      ends.push_back(std::async(std::launch::async, [this, i, ranks, time] {
        return leave_last_snapshot(options(i), ranks, time);
      }));
    }
    std::vector<Result<std::string>> results;
    for (auto& end : ends) results.push_back(end.get());
    return results;
  }
  // The snapshot has what undisturbed ranks have at this version.
  void expect_snapshot(const std::string& name, Version version) {
    EXPECT_TRUE(snapshot::verify(folder_, name));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      auto loaded = Arena::open(directory_.file(cat("loaded-", rank)), kModel, kRun);
      const PartOptions part{.rank = rank, .workers = kRanks, .shared_bytes = 0};
      const auto read = load_parts(*loaded, part, version, folder_, name);
      ASSERT_TRUE(read) << read.error().what;
      auto right = Arena::open(directory_.file(cat("right-", rank)), kModel, kRun);
      begin(*right, rank);
      while (right->version() < version) make_step(*right, rank, true);
      EXPECT_EQ(loaded->digest(), right->digest());
      EXPECT_EQ(loaded->position(), right->position());
      EXPECT_TRUE(
          std::ranges::equal(loaded->private_bytes(version), right->private_bytes(version)));
    }
  }
  void expect_all(const std::vector<Result<std::string>>& ends, Version version) {
    for (const auto& end : ends) {
      ASSERT_TRUE(end) << end.error().what;
      EXPECT_EQ(*end, wire::name_of_snapshot(kRun, 0, version));
    }
    expect_snapshot(*ends[0], version);
    for (const auto& left : std::filesystem::directory_iterator(folder_)) {
      EXPECT_EQ(left.path().filename(), *ends[0]) << "the notes are removed";
    }
  }

  static constexpr std::int32_t kRanks = 4;
  arena::testing::Directory directory_;
  std::string folder_ = directory_.file("snapshots");
};

TEST_F(LastSnapshotTest, OneHostBringsAllToTheNewestStep) {
  expect_all(end({{{0, 5}, {1, 4, true}, {2, 5, true}, {3, 4, true}}}), 5);
}

// Rank 2's update was made, so step 5 was committed, whoever knows it.
TEST_F(LastSnapshotTest, HostsFindTheVersionTogether) {
  expect_all(end({{{0, 4, true}, {1, 4, true}}, {{2, 5}}, {{3, 4, true}}}), 5);
}

TEST_F(LastSnapshotTest, AStepThatNobodyCommittedIsGivenUp) {
  expect_all(end({{{0, 4, true}, {1, 4, true}}, {{2, 4, true}, {3, 4, true}}}), 4);
}

// Ranks 1 and 3 were on the other host once, rank 3 just now.
TEST_F(LastSnapshotTest, WhatARankHasLeftOnAnEarlierStayDoesNotCount) {
  expect_all(
      end({{{0, 6}, {1, 5, true}, {3, 6, false, true}}, {{1, 9, false, true}, {2, 6}, {3, 6}}}), 6);
}

TEST_F(LastSnapshotTest, ASpareHostHasNothingToSave) {
  const auto ends = end({{{0, 6}, {1, 6}, {2, 6}, {3, 6}}, {}});
  ASSERT_TRUE(ends[0]);
  expect_snapshot(*ends[0], 6);
  ASSERT_TRUE(ends[1]);
  EXPECT_EQ(*ends[1], "");
}

TEST_F(LastSnapshotTest, WithoutAHostThereIsNone) {
  const auto ends = end({{{0, 6}, {1, 6}, {2, 6}}, {}}, std::chrono::milliseconds(1));
  ASSERT_FALSE(ends[0]);
  EXPECT_NE(ends[0].error().what.find("of rank 3"), std::string::npos) << ends[0].error().what;
  EXPECT_TRUE(snapshot::find(folder_)->whole.empty());
}

TEST_F(LastSnapshotTest, WithoutARanksStateThereIsNone) {
  const auto ends = end({{{0, 6}, {1, 4, true}, {2, 6}, {3, 6}}});
  ASSERT_FALSE(ends[0]);
  EXPECT_NE(ends[0].error().what.find("rank 1 is behind"), std::string::npos);
}

// A job may have ended since memory had changed.
TEST_F(LastSnapshotTest, OfRanksThatDifferThereIsNone) {
  leave({{{0, 6}, {1, 6}, {2, 6}, {3, 6}}});
  {
    auto arena = Arena::open_left(cat(host(0), "/rank-2.arena"));
    ASSERT_TRUE(arena);
    arena->parameter(0)[7] += 1;
  }
  const auto made = leave_last_snapshot(options(0), {0, 1, 2, 3}, kLong);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().what.find("rank 2 holds other parameters"), std::string::npos);
  EXPECT_TRUE(snapshot::find(folder_)->whole.empty());
}

// Two hosts began with version 6. One rank has staged the next one, which nobody committed; and one
// has lost what it was told.
TEST_F(LastSnapshotTest, WhatTheJobBeganWithIsNotSavedAgain) {
  expect_all(end({{{0, 6}, {1, 6}, {2, 6}, {3, 6}}}), 6);
  const std::string began_with = wire::name_of_snapshot(kRun, 0, 6);
  const std::vector<Host> hosts = {{{0, 6}, {1, 6, true}}, {{2, 6}, {3, 6}}};
  const auto begin_anew = [&] {
    for (const std::size_t i : {0U, 1U}) std::filesystem::remove_all(host(i));
    std::filesystem::remove_all(cat(folder_, "/last-", hex(kRun)));
    for (const Rank rank : {0, 1, 2}) {
      const std::string its = host(static_cast<std::size_t>(rank / 2));
      std::filesystem::create_directories(its);
      std::ofstream(cat(its, '/', loaded_file(rank))) << began_with;
    }
  };
  begin_anew();
  const auto begun = std::chrono::steady_clock::now();
  for (const auto& none : end(hosts)) {
    ASSERT_TRUE(none) << none.error().what;
    EXPECT_EQ(*none, "");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30)) << "of 120";
  EXPECT_EQ(snapshot::find(folder_)->whole.size(), 1U);
  ASSERT_TRUE(snapshot::remove(folder_, began_with));  // Or it is in another folder.
  begin_anew();
  const auto ends = end(hosts);
  ASSERT_TRUE(ends[1]) << ends[1].error().what;
  EXPECT_EQ(*ends[1], began_with);
  EXPECT_TRUE(snapshot::verify(folder_, began_with));
}

TEST_F(LastSnapshotTest, AStepOnlyStagedByOneHostIsNone) {
  for (const auto& none : end({{{0, 0}, {1, 0, true}}, {{2, 0}, {3, 0}}})) {
    ASSERT_TRUE(none) << none.error().what;
    EXPECT_EQ(*none, "");
  }
}

TEST_F(LastSnapshotTest, OneThatIsThereAlreadyIsNotMadeAgain) {
  expect_all(end({{{0, 6}, {1, 6}, {2, 6}, {3, 6}}}), 6);
  const auto again = leave_last_snapshot(options(0), {0, 1, 2, 3}, {});  // It has no time to write.
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, wire::name_of_snapshot(kRun, 0, 6));
}

}  // namespace
}  // namespace holdfast::runtime
