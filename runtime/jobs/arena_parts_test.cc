// What ranks give to a snapshot comes back whole, whichever rank loads, and nothing else does.
#include "runtime/jobs/arena_parts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "arena/testing.h"
#include "base/text.h"
#include "os/files.h"
#include "snapshot/folder.h"
#include "wire/formation.h"

namespace holdfast::runtime {
namespace {

using arena::Arena;
using arena::Range;

constexpr std::int32_t kWorkers = 3;
constexpr Version kMade = 6;
constexpr std::uint64_t kRun = 7;
constexpr std::uint64_t kPrivate = 50'000;
constexpr std::uint64_t kCommon = 30'000;
const std::vector<Range> kUsed{{0, 20'000}, {25'000, 10'000}, {40'000, 1}};

const arena::Layout kModel{
    .parameters = {{"w", 10'000}}, .optimizer = arena::Optimizer::kAdam, .private_bytes = kPrivate};

void draw(std::span<std::byte> bytes, std::size_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i);
}

class PartsTest : public ::testing::Test {
 protected:
  PartsTest() {
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      arenas_.push_back(open(cat("rank-", rank)));
      Arena& arena = arenas_.back();
      draw(std::as_writable_bytes(arena.parameter(0)), 1);
      draw(std::as_writable_bytes(arena.moment(0, 0)), 2);
      draw(std::as_writable_bytes(arena.moment(1, 0)), 3);
      draw(arena.private_bytes(kMade), 4);
      draw(arena.private_bytes(kMade).subspan(kCommon), 50 + static_cast<std::size_t>(rank));
      arena.begin(kMade, {.epoch = 1, .index = 2, .samples = 3}, kUsed);
    }
  }
  Arena open(const std::string& name, const arena::Layout& layout = kModel,
             std::uint64_t run = kRun) {
    auto arena = Arena::open(directory_.file(name), layout, run);
    EXPECT_TRUE(arena) << arena.error().what;
    return *std::move(arena);
  }
  static PartOptions options(Rank rank, std::int32_t workers = kWorkers) {
    return {.rank = rank, .workers = workers, .shared_bytes = kCommon};
  }
  void make(std::int32_t workers = kWorkers) {
    snapshot::Manifest manifest{.job = "job",
                                .run_id = kRun,
                                .version = kMade,
                                .world_size = workers,
                                .servers = 0,
                                .program = "toy",
                                .unix_ms = 1,
                                .files = {}};
    for (Rank rank = 0; rank < workers; ++rank) {
      const std::string part = directory_.file(cat("part-", rank));
      const auto at = static_cast<std::size_t>(rank);
      const auto given = ArenaPart::of(arenas_[at], options(rank, workers));
      ASSERT_TRUE(given) << given.error().what;
      const auto written = given->write(part);
      ASSERT_TRUE(written) << written.error().what;
      const auto stored = snapshot::store_shard(part, dir_, name_, rank);
      ASSERT_TRUE(stored) << stored.error().what;
      manifest.files.push_back(*stored);
    }
    const auto named = snapshot::name_snapshot(dir_, name_, manifest);
    ASSERT_TRUE(named) << named.error().what;
  }
  static void expect_equal(Arena& a, Arena& b) {
    EXPECT_EQ(a.version(), b.version());
    EXPECT_EQ(a.position(), b.position());
    EXPECT_EQ(a.digest(), b.digest());
    for (const auto& [offset, bytes] : kUsed) {
      EXPECT_EQ(std::memcmp(a.private_bytes(kMade).data() + offset,
                            b.private_bytes(kMade).data() + offset, bytes),
                0)
          << offset;
    }
  }

  arena::testing::Directory directory_;
  const std::string dir_ = directory_.file("snapshots");
  const std::string name_ = wire::name_of_snapshot(kRun, 1, kMade);
  std::vector<Arena> arenas_;
};

TEST_F(PartsTest, EachRankOfAnotherRunLoadsWhatItHad) {
  make();
  for (Rank rank = 0; rank < kWorkers; ++rank) {
    Arena loaded = open(cat("new-", rank), kModel, kRun + 1);
    const auto bytes = load_parts(loaded, options(rank), kMade, dir_, name_);
    ASSERT_TRUE(bytes) << bytes.error().what;
    expect_equal(loaded, arenas_[static_cast<std::size_t>(rank)]);
  }
}

// Of the private bytes, the version uses less than a hundredth.
TEST_F(PartsTest, WhatIsLoadedTakesTheMemoryOfWhatIsUsed) {
  arena::Layout roomy = kModel;
  roomy.private_bytes = 32 << 20;
  arenas_.clear();
  arenas_.push_back(open("roomy", roomy));
  draw(arenas_[0].private_bytes(kMade).first(kPrivate), 4);
  arenas_[0].begin(kMade, {}, kUsed);
  make(1);
  auto loaded =
      Arena::open(directory_.file("new"), roomy, kRun + 1, nullptr, arena::Memory::kAsUsed);
  ASSERT_TRUE(loaded) << loaded.error().what;
  const auto bytes = load_parts(*loaded, options(0, 1), kMade, dir_, name_);
  ASSERT_TRUE(bytes) << bytes.error().what;
  expect_equal(*loaded, arenas_[0]);
  struct stat status {};
  ASSERT_EQ(::stat(loaded->path().c_str(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, 4 << 20);
}

// What all hold alike is written once: 120 KB of floats, and 25 KB of private bytes.
TEST_F(PartsTest, WhatAllHoldAlikeIsThereOnce) {
  make();
  std::uint64_t bytes = 0;
  const auto manifest = snapshot::read_manifest(dir_, name_);
  ASSERT_TRUE(manifest) << manifest.error().what;
  for (const auto& file : manifest->files) bytes += file.bytes;
  const std::uint64_t shared = 3 * 40'000 + 25'000;
  const std::uint64_t own = kWorkers * (5'000 + 1);
  EXPECT_GE(bytes, shared + own);
  EXPECT_LT(bytes, shared + own + kWorkers * 30'000) << "with the heads of the arenas";
}

TEST_F(PartsTest, ASingleWorkerHasAllOfIt) {
  make(1);
  Arena loaded = open("new", kModel, kRun + 1);
  const auto bytes = load_parts(loaded, options(0, 1), kMade, dir_, name_);
  ASSERT_TRUE(bytes) << bytes.error().what;
  expect_equal(loaded, arenas_[0]);
}

TEST_F(PartsTest, AnotherModelIsNamed) {
  make();
  arena::Layout other = kModel;
  other.parameters[0].elements = 9'999;
  Arena loaded = open("new", other, kRun + 1);
  const auto bytes = load_parts(loaded, options(0), kMade, dir_, name_);
  ASSERT_FALSE(bytes);
  EXPECT_NE(bytes.error().what.find("w (10000)"), std::string::npos) << bytes.error().what;
  EXPECT_TRUE(loaded.fresh());
}

TEST_F(PartsTest, AnotherVersionOrWorldIsRefused) {
  make();
  Arena loaded = open("new", kModel, kRun + 1);
  EXPECT_FALSE(load_parts(loaded, options(0), kMade + 1, dir_, name_));
  EXPECT_FALSE(load_parts(loaded, options(0, 2), kMade, dir_, name_));
  EXPECT_FALSE(load_parts(loaded, options(0, 4), kMade, dir_, name_));
  EXPECT_TRUE(loaded.fresh());
}

// A part of any rank is damaged: whoever needs it finds that, and holds nothing.
TEST_F(PartsTest, DamageIsFoundByWhoeverNeedsIt) {
  make();
  const std::string path = snapshot::path_of(dir_, name_, 2);
  auto bytes = *os::read_file(path);
  const std::size_t shared = bytes.size() / 2;
  bytes[shared] = static_cast<char>(bytes[shared] ^ 1);
  ASSERT_TRUE(os::write_file_atomically(path, bytes));
  for (Rank rank = 0; rank < kWorkers; ++rank) {
    Arena loaded = open(cat("new-", rank), kModel, kRun + 1);
    const auto got = load_parts(loaded, options(rank), kMade, dir_, name_);
    ASSERT_FALSE(got) << rank;
    EXPECT_NE(got.error().what.find("rank-2.safetensors"), std::string::npos) << got.error().what;
    EXPECT_TRUE(loaded.fresh());
  }
}

TEST_F(PartsTest, AMissingPartIsNamed) {
  make();
  std::filesystem::remove(snapshot::path_of(dir_, name_, 1));
  Arena loaded = open("new", kModel, kRun + 1);
  const auto got = load_parts(loaded, options(0), kMade, dir_, name_);
  ASSERT_FALSE(got);
  EXPECT_NE(got.error().what.find("rank-1"), std::string::npos) << got.error().what;
}

}  // namespace
}  // namespace holdfast::runtime
