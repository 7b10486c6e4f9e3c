#include "runtime/agent/last_snapshot.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "arena/arena.h"
#include "arena/testing.h"
#include "base/text.h"
#include "os/files.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

// What two ranks have left in memory, both at version 3.
class LastSnapshot : public ::testing::Test {
 protected:
  void SetUp() override {
    const arena::Layout layout{
        .parameters = {{"w", 100}}, .optimizer = arena::Optimizer::kAdam, .private_bytes = 50};
    for (const Rank rank : {0, 1}) {
      auto arena = arena::Arena::open(directory_.file(cat("rank-", rank, ".arena")), layout, 7);
      ASSERT_TRUE(arena) << arena.error().what;
      arena->begin(3, {}, {});
    }
  }

  arena::testing::Directory directory_;
  const SnapshotWriter::Options options_{.folder = directory_.file("snapshots"),
                                         .job_directory = directory_.file(""),
                                         .job = "job",
                                         .program = "toy\n",
                                         .world_size = 2,
                                         .servers = 0};
};

TEST_F(LastSnapshot, IsMadeOnceAndNamedEachTime) {
  const auto made = leave_last_snapshot(options_, 1min);
  ASSERT_TRUE(made) << made.error().what;
  const auto again = leave_last_snapshot(options_, 0min);  // It has no time to write.
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(*again, *made);
  const auto found = snapshot::find(options_.folder);
  ASSERT_TRUE(found) << found.error().what;
  ASSERT_EQ(found->whole.size(), 1U);
  EXPECT_EQ(found->whole[0].name, *made);
  EXPECT_EQ(found->whole[0].manifest.version, 3U);
  EXPECT_FALSE(found->whole[0].manifest.release.empty());
}

}  // namespace
}  // namespace holdfast::runtime
