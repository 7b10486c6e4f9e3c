// Arenas that are held for a rank of another host, and follow its versions.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "arena/arena.h"
#include "arena/testing.h"

namespace holdfast::arena {
namespace {

constexpr std::uint64_t kRun = 7;

class HeldArena : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 10'000;
  Arena make() {
    auto made = Arena::open(path_, Layout::held_for(3, kBytes), kRun);
    EXPECT_TRUE(made) << made.error().what;
    return *std::move(made);
  }
  static void stage(Arena& held, Version v) {
    std::ranges::fill(held.private_bytes(v), static_cast<std::byte>(v));
    if (held.fresh()) return held.begin(v, {});
    held.stage(v, {.private_bytes = held.private_bytes(v)});
  }
  static bool is_whole(Arena& held, Version v) {
    const auto bytes = held.private_bytes(v);
    return std::ranges::all_of(bytes, [v](std::byte b) { return b == static_cast<std::byte>(v); });
  }
  testing::Directory directory_;
  const std::string path_ = directory_.file("rank-3.held-by-0");
};

TEST_F(HeldArena, KeepsTheVersionBeforeUntilTheStepIsCommitted) {
  Arena held = make();
  for (const Version v : {Version{0}, Version{1}, kNoVersion}) EXPECT_FALSE(held.has(v));
  held.settle(5);
  EXPECT_TRUE(held.fresh());
  stage(held, 5);
  stage(held, 6);
  EXPECT_TRUE(held.has(5) && held.has(6) && !held.has(7));
  EXPECT_TRUE(is_whole(held, 5) && is_whole(held, 6));
  held.settle(6);
  EXPECT_EQ(held.version(), 6U);
  EXPECT_FALSE(held.has(5));
  stage(held, 7);
  held.settle(6);  // The step was void.
  EXPECT_TRUE(held.has(6) && !held.has(7));
  held.settle(9);
  EXPECT_TRUE(held.has(6));
}

TEST_F(HeldArena, IsFoundByAnotherProcess) {
  EXPECT_FALSE(Arena::open_held(path_, kRun));
  {
    Arena held = make();
    EXPECT_FALSE(Arena::open_held(path_, kRun)) << "it has no version";
    stage(held, 5);
    stage(held, 6);
  }
  EXPECT_FALSE(Arena::open_held(path_, kRun + 1)) << "of another run";
  {
    auto held = Arena::open_held(path_, kRun);
    ASSERT_TRUE(held) << held.error().what;
    EXPECT_EQ(held->layout().ward, 3);
    EXPECT_TRUE(held->has(5) && held->has(6));
    EXPECT_TRUE(is_whole(*held, 5) && is_whole(*held, 6));
  }
  for (const off_t size : {8192, 100}) {
    ASSERT_EQ(truncate(path_.c_str(), size), 0);
    EXPECT_FALSE(Arena::open_held(path_, kRun));
  }
  auto own = Arena::open(directory_.file("rank-3.arena"), {.private_bytes = kBytes}, kRun);
  ASSERT_TRUE(own) << own.error().what;
  own->begin_version0({});
  EXPECT_FALSE(Arena::open_held(own->path(), kRun));
}

// After a kill at any moment, the versions that the file claims to have are complete.
TEST_F(HeldArena, IsTrueAfterAnyKill) {
  for (int round = 0; round < 200; ++round) {
    std::filesystem::remove(path_);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Arena held = make();
      stage(held, 0);
      for (Version v = 1;; ++v) {
        stage(held, v);
        if (v % 3 == 0) {  // The step was void, and is made again.
          held.unstage();
          stage(held, v);
        }
        held.settle(v);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300 + 17 * round));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    auto held = Arena::open_held(path_, kRun);
    if (!held) continue;  // Killed before there was a version.
    ASSERT_TRUE(is_whole(*held, held->version())) << held->version();
    ASSERT_TRUE(is_whole(*held, held->staged())) << held->staged();
  }
}

}  // namespace
}  // namespace holdfast::arena
