#include "arena/private_copy.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "arena/arena.h"
#include "arena/testing.h"

namespace holdfast::arena {
namespace {

using testing::Directory;

constexpr std::uint64_t kRun = 7;
constexpr std::uint64_t kBytes = 10'000;

class PrivateCopyTest : public ::testing::Test {
 protected:
  PrivateCopy make() {
    auto made = PrivateCopy::make(path_, kRun, 3, kBytes);
    EXPECT_TRUE(made) << made.error().what;
    return *std::move(made);
  }
  static void fill(const PrivateCopy& copy, Version v) {
    std::memset(copy.place(v).data(), static_cast<int>(v), kBytes);
  }
  static void take(PrivateCopy& copy, Version v) {
    copy.expect(v);
    fill(copy, v);
    copy.take(v);
  }
  static bool is_whole(const PrivateCopy& copy, Version v) {
    const auto bytes = copy.place(v);
    return std::all_of(bytes.begin(), bytes.end(),
                       [v](std::byte b) { return b == static_cast<std::byte>(v); });
  }

  Directory directory_;
  const std::string path_ = directory_.file("rank-3.held-by-0");
};

TEST_F(PrivateCopyTest, HoldsNothingAtFirst) {
  const auto copy = make();
  EXPECT_EQ(copy.ward(), 3);
  EXPECT_EQ(copy.bytes(), kBytes);
  EXPECT_EQ(copy.version(), kNoVersion);
  EXPECT_EQ(copy.staged(), kNoVersion);
  for (const Version v : {Version{0}, Version{1}, kNoVersion}) EXPECT_FALSE(copy.has(v));
}

TEST_F(PrivateCopyTest, KeepsTheVersionBeforeUntilTheStepIsCommitted) {
  auto copy = make();
  take(copy, 5);
  EXPECT_EQ(copy.version(), 5U);
  EXPECT_EQ(copy.staged(), 5U);
  take(copy, 6);
  EXPECT_TRUE(copy.has(5) && copy.has(6));
  EXPECT_TRUE(is_whole(copy, 5) && is_whole(copy, 6));
  copy.settle(6);
  EXPECT_EQ(copy.version(), 6U);
  EXPECT_FALSE(copy.has(5));
  take(copy, 7);
  copy.settle(6);  // The step was void.
  EXPECT_TRUE(copy.has(6) && !copy.has(7));
}

TEST_F(PrivateCopyTest, CountsNothingThatIsBeingWrittenOver) {
  auto copy = make();
  take(copy, 5);
  take(copy, 6);
  copy.expect(6);  // Once more, after a void step.
  EXPECT_TRUE(copy.has(5) && !copy.has(6));
  copy.expect(9);  // Of another version than the next: nothing is kept.
  EXPECT_FALSE(copy.has(5));
  copy.take(9);
  EXPECT_EQ(copy.version(), 9U);
  EXPECT_EQ(copy.staged(), 9U);
}

TEST_F(PrivateCopyTest, AnotherProcessFindsIt) {
  {
    auto copy = make();
    take(copy, 5);
    take(copy, 6);
  }
  const auto copy = PrivateCopy::open(path_, kRun, os::Access::kRead);
  ASSERT_TRUE(copy) << copy.error().what;
  EXPECT_EQ(copy->version(), 5U);
  EXPECT_EQ(copy->staged(), 6U);
  EXPECT_EQ(copy->ward(), 3);
  EXPECT_TRUE(is_whole(*copy, 5) && is_whole(*copy, 6));
}

TEST_F(PrivateCopyTest, SaysWhichBytesOfEachVersionAreInUse) {
  auto copy = make();
  take(copy, 5);
  EXPECT_EQ(copy.used(5), (std::vector<Range>{{0, kBytes}}));
  const std::vector<Range> used{{0, 10}, {10, 0}, {500, 1}};
  copy.expect(6);
  copy.take(6, used);
  const auto there = PrivateCopy::open(path_, kRun, os::Access::kRead);
  ASSERT_TRUE(there) << there.error().what;
  EXPECT_EQ(there->used(5), (std::vector<Range>{{0, kBytes}}));
  EXPECT_EQ(there->used(6), used);
  const auto facts = there->facts();
  EXPECT_TRUE(facts.has(5) && facts.has(6) && !facts.has(7));
  const std::uint64_t place = 4096;  // Of even versions: the first one.
  const std::vector<Range> ranges{{0, 4096}, {place, 10}, {place + 500, 1}};
  EXPECT_EQ(facts.ranges_to_copy(6), ranges);
  EXPECT_EQ(facts.ranges_to_copy(5)[1], (Range{place + 12'288, kBytes}));
}

TEST_F(PrivateCopyTest, RefusesWhatIsNoneOfThisRun) {
  EXPECT_FALSE(PrivateCopy::open(path_, kRun));
  { (void)make(); }
  EXPECT_FALSE(PrivateCopy::open(path_, kRun + 1));
  EXPECT_TRUE(PrivateCopy::open(path_, kRun));
  ASSERT_EQ(::truncate(path_.c_str(), 8192), 0);
  EXPECT_FALSE(PrivateCopy::open(path_, kRun));
  ASSERT_EQ(::truncate(path_.c_str(), 100), 0);
  EXPECT_FALSE(PrivateCopy::open(path_, kRun));
}

// What a file says that was left by a process killed at any moment is true.
TEST_F(PrivateCopyTest, IsTrueAfterAnyKill) {
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto made = PrivateCopy::make(path_, kRun, 3, kBytes);
      if (!made) _exit(1);
      take(*made, 0);
      for (Version v = 1;; ++v) {
        take(*made, v);
        if (v % 3 == 0) take(*made, v);  // The step was void, and is made again.
        made->settle(v);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300 + 17 * round));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto copy = PrivateCopy::open(path_, kRun);
    if (!copy || copy->version() == kNoVersion) continue;  // It had not come so far.
    ASSERT_TRUE(is_whole(*copy, copy->version())) << copy->version();
    ASSERT_TRUE(is_whole(*copy, copy->staged())) << copy->staged();
  }
}

TEST_F(PrivateCopyTest, GoesIntoAnArena) {
  const Layout layout{
      .parameters = {{"w", 100}}, .optimizer = Optimizer::kSgd, .private_bytes = kBytes};
  auto source = Arena::open(directory_.file("rank-0.arena"), layout, kRun);
  ASSERT_TRUE(source);
  source->begin(6, {.epoch = 1, .index = 2, .samples = 3});
  auto lost = Arena::open(directory_.file("rank-3.arena"), layout, kRun);
  ASSERT_TRUE(lost);
  auto held = make();
  take(held, 5);
  EXPECT_FALSE(lost->copy_from(source->path(), 6, 0, &held));
  EXPECT_TRUE(lost->fresh());
  take(held, 6);
  const auto copied = lost->copy_from(source->path(), 6, 0, &held);
  ASSERT_TRUE(copied) << copied.error().what;
  EXPECT_EQ(lost->version(), 6U);
  EXPECT_EQ(lost->position().index, 2U);
  EXPECT_EQ(std::memcmp(lost->private_bytes(6).data(), held.place(6).data(), kBytes), 0);
}

}  // namespace
}  // namespace holdfast::arena
