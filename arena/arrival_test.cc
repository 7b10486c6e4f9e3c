// Arrival: a version comes into an arena completely, or not at all.
#include "arena/arrival.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "arena/testing.h"
#include "os/files.h"

namespace holdfast::arena {
namespace {

using testing::Directory;

constexpr std::uint64_t kArrivalRun = 7;
constexpr std::uint64_t kPrivate = 30'000;
constexpr std::uint64_t kCommon = 10'000;
constexpr Version kVersion = 6;
constexpr Rank kWard = 3;
const std::vector<Range> kUsed{{0, 100}, {5'000, 4'000}, {19'999, 1}};

const Layout kLayout{
    .parameters = {{"w", 1000}}, .optimizer = Optimizer::kAdam, .private_bytes = kPrivate};

void pattern(std::span<std::byte> bytes, std::size_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(seed + 31 * i);
}

using From = Arrival::From;

class ArrivalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pattern(std::as_writable_bytes(source_.parameter(0)), 1);
    pattern(std::as_writable_bytes(source_.moment(0, 0)), 2);
    pattern(std::as_writable_bytes(source_.moment(1, 0)), 3);
    pattern(source_.private_bytes(kVersion), 4);
    source_.begin(kVersion, {.epoch = 1, .index = 2, .samples = 3});
    hold(held_, kVersion);
    pattern(lost_.private_bytes(kVersion), 9);  // Bytes that are not in use keep this pattern.
  }
  Arena open(const std::string& name, const Layout& layout = kLayout) {
    auto arena = Arena::open(directory_.file(name), layout, kArrivalRun);
    EXPECT_TRUE(arena) << arena.error().what;
    return *std::move(arena);
  }
  Arena make(const std::string& name, std::uint64_t bytes = kPrivate - kCommon) {
    return open(name, Layout::held_for(kWard, bytes));
  }
  static void hold(Arena& held, Version v, const std::vector<Range>& used = kUsed) {
    held.invalidate();
    pattern(held.private_bytes(v), 5);
    held.begin(v, {.epoch = 9}, used);
  }

  // Does what runtime/worker/state_transfer does, without a network.
  static Status bring(Arrival& arrival, const Arrival::Coming& coming, std::size_t ranges) {
    const auto file = os::read_file(coming.name);
    EXPECT_TRUE(file);
    for (std::size_t i = 0; i < ranges; ++i) {
      const auto to = arrival.place(coming, i);
      if (!to) return to.error();
      EXPECT_EQ(to->size(), coming.ranges[i].bytes);
      std::memcpy(to->data(), file->data() + coming.ranges[i].offset, to->size());
    }
    return {};
  }
  static Status bring(Arrival& arrival, const Arrival::Coming& coming) {
    auto brought = bring(arrival, coming, coming.ranges.size());
    return brought ? arrival.came(coming) : brought;
  }
  static Arrival::Coming coming_of(const Arena& arena, Version v = kVersion) {
    const auto leaves = departure(arena.path(), v, kCommon);
    EXPECT_TRUE(leaves) << leaves.error().what;
    const bool is_held = arena.layout().ward != kNoRank;
    return {.from = is_held ? From::kHolder : From::kRank,
            .name = arena.path(),
            .file_bytes = leaves->file.bytes,
            .ranges = leaves->ranges};
  }
  void expect_whole(const Arena& arena) const {
    auto& lost = const_cast<Arena&>(arena);
    auto& source = const_cast<Arena&>(source_);
    EXPECT_EQ(lost.version(), kVersion);
    EXPECT_EQ(lost.staged(), kVersion);
    EXPECT_EQ(lost.position(), source.position());
    EXPECT_EQ(lost.digest(), source.digest());
    std::vector<std::byte> expected(kPrivate);
    pattern(expected, 9);
    const auto all = std::span(expected);
    std::ranges::copy(source.private_bytes(kVersion).first(kCommon), all.begin());
    for (const auto& [offset, bytes] : kUsed) {
      const auto held = const_cast<Arena&>(held_).private_bytes(kVersion).subspan(offset, bytes);
      std::ranges::copy(held, all.subspan(kCommon + offset).begin());
    }
    EXPECT_TRUE(std::ranges::equal(lost.private_bytes(kVersion), all));
  }

  Directory directory_;
  Arena source_ = open("rank-0.arena");
  Arena held_ = make("rank-3.held-by-0");
  Arena lost_ = open("rank-3.arena");
};

TEST_F(ArrivalTest, BringsEachByteToItsPlace) {
  for (const bool state_is_here : {false, true}) {
    for (const bool held_is_here : {false, true}) {
      lost_.invalidate();
      pattern(lost_.private_bytes(kVersion), 9);
      Arrival arrival(lost_, kVersion, kCommon, kWard);
      const auto state = state_is_here ? arrival.copy(From::kRank, source_.path())
                                       : bring(arrival, coming_of(source_));
      ASSERT_TRUE(state) << state.error().what;
      EXPECT_FALSE(arrival.end()) << "the half of it is no version";
      EXPECT_TRUE(lost_.fresh());
      const auto held = held_is_here ? arrival.copy(From::kHolder, held_.path())
                                     : bring(arrival, coming_of(held_));
      ASSERT_TRUE(held) << held.error().what;
      EXPECT_TRUE(lost_.fresh());
      ASSERT_TRUE(arrival.end());
      expect_whole(lost_);
    }
  }
}

// What came only in part, or was not confirmed by came(), counts for nothing. It may come again.
TEST_F(ArrivalTest, WhatHasNotComeWholeCountsForNothing) {
  lost_.begin(2, {});
  Arrival arrival(lost_, kVersion, kCommon, kWard);
  const auto coming = coming_of(source_);
  for (std::size_t ranges = 0; ranges <= coming.ranges.size(); ++ranges) {
    ASSERT_TRUE(bring(arrival, coming, ranges));
    EXPECT_FALSE(arrival.end());
    // Nothing is touched before the second range.
    EXPECT_EQ(lost_.version(), ranges < 2 ? 2 : kNoVersion) << ranges;
  }
  ASSERT_TRUE(bring(arrival, coming));
  const auto rest = coming_of(held_);
  for (std::size_t ranges = 0; ranges <= rest.ranges.size(); ++ranges) {
    ASSERT_TRUE(bring(arrival, rest, ranges));
    EXPECT_FALSE(arrival.end());
  }
  // A source that is begun anew counts as missing.
  ASSERT_TRUE(bring(arrival, rest));
  ASSERT_TRUE(bring(arrival, coming, 2));
  EXPECT_FALSE(arrival.end());
  EXPECT_TRUE(lost_.fresh());
  ASSERT_TRUE(bring(arrival, coming));
  ASSERT_TRUE(arrival.end());
  expect_whole(Arena(std::move(lost_)));
}

TEST_F(ArrivalTest, WhatIsNotExpectedTouchesNothing) {
  lost_.begin(2, {});
  const auto refused = [&](const Arrival::Coming& coming, const std::string& why) {
    Arrival arrival(lost_, kVersion, kCommon, kWard);
    const auto came = bring(arrival, coming);
    ASSERT_FALSE(came) << why;
    EXPECT_NE(came.error().what.find(why), std::string::npos) << came.error().what;
    EXPECT_FALSE(arrival.end());
    EXPECT_EQ(lost_.version(), 2U) << why;
  };
  auto other = coming_of(source_);
  other.ranges.pop_back();
  refused(other, "other parts come");
  other = coming_of(source_);
  other.ranges.back().bytes -= 1;
  refused(other, "other parts come");
  other = coming_of(source_);
  other.ranges[0].bytes = 100;
  refused(other, "is truncated");
  other.ranges[0] = {64, 4096};
  refused(other, "its file's beginning");
  other.ranges[0] = {0, std::uint64_t{1} << 40};
  refused(other, "its file's beginning");
  auto foreign = Arena::open(directory_.file("foreign"), kLayout, kArrivalRun + 1);
  ASSERT_TRUE(foreign);
  foreign->begin(kVersion, {});
  refused(coming_of(*foreign), "of another run");
  auto layout = kLayout;
  layout.parameters[0].elements = 900;
  Arena different = open("different", layout);
  different.begin(kVersion, {});
  refused(coming_of(different), "its model or optimizer differs");
  source_.invalidate();
  source_.begin(kVersion + 2, {});
  refused(coming_of(source_), "does not stand still at version 6");
}

TEST_F(ArrivalTest, WhatIsHeldOfAnotherIsNotTaken) {
  lost_.begin(2, {});
  const auto refused = [&](const Arrival::Coming& coming, Rank ward, const std::string& why) {
    Arrival arrival(lost_, kVersion, kCommon, ward);
    for (const bool is_here : {false, true}) {
      if (is_here && why == "other parts come") continue;
      const auto came = is_here ? arrival.copy(From::kHolder, coming.name) : bring(arrival, coming);
      ASSERT_FALSE(came) << why;
      EXPECT_NE(came.error().what.find(why), std::string::npos) << came.error().what;
    }
    EXPECT_EQ(lost_.version(), 2U) << why;
  };
  refused(coming_of(held_), kWard + 1, "held for rank 3 there and held for rank 4 here");
  auto coming = coming_of(held_);
  coming.ranges.pop_back();
  refused(coming, kWard, "other parts come");
  Arena later = make("later");
  hold(later, kVersion + 1);
  EXPECT_FALSE(departure(later.path(), kVersion, kCommon));
  refused(coming_of(later, kVersion + 1), kWard, "does not stand still at version 6");
  Arena smaller = make("smaller", 8'000);
  hold(smaller, kVersion, {{0, 1}});
  refused(coming_of(smaller), kWard, "8000 bytes there and 20000 here");
  coming = coming_of(source_);
  coming.from = From::kHolder;
  refused(coming, kWard, "a rank's own there and held for rank 3 here");
}

// The holder has only staged the version. That is enough: what is held needs no update.
TEST_F(ArrivalTest, AStagedVersionOfWhatIsHeldIsWhole) {
  hold(held_, kVersion - 1);
  pattern(held_.private_bytes(kVersion), 5);
  held_.stage(kVersion, {.private_bytes = held_.private_bytes(kVersion), .used = kUsed});
  Arrival arrival(lost_, kVersion, kCommon, kWard);
  ASSERT_TRUE(bring(arrival, coming_of(source_)));
  ASSERT_TRUE(bring(arrival, coming_of(held_)));
  ASSERT_TRUE(arrival.copy(From::kHolder, held_.path()));
  ASSERT_TRUE(arrival.end());
  expect_whole(lost_);
}

// If none of the held bytes are in use, only the file's beginning comes.
TEST_F(ArrivalTest, NothingInUseIsAllOfIt) {
  hold(held_, kVersion, {{0, 0}});
  const auto coming = coming_of(held_);
  EXPECT_EQ(coming.ranges.size(), 1U);
  Arrival of_another(lost_, kVersion, kCommon, kWard + 1);
  EXPECT_FALSE(bring(of_another, coming));
  Arrival arrival(lost_, kVersion, kCommon, kWard);
  ASSERT_TRUE(bring(arrival, coming_of(source_)));
  EXPECT_FALSE(arrival.end());
  ASSERT_TRUE(bring(arrival, coming));
  EXPECT_TRUE(arrival.end());
}

// A process killed at any moment leaves an arena that is fresh, or whole.
TEST_F(ArrivalTest, IsTrueAfterAnyKill) {
  const std::string path = lost_.path();
  int cut = 0;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) {
        lost_.invalidate();
        pattern(lost_.private_bytes(kVersion), 9);
        Arrival arrival(lost_, kVersion, kCommon, kWard);
        if (!bring(arrival, coming_of(source_)) || !bring(arrival, coming_of(held_)) ||
            !arrival.end()) {
          _exit(1);
        }
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(300 + 17 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    if (lost_.fresh()) {
      ++cut;
    } else {
      expect_whole(lost_);
    }
  }
  EXPECT_GT(cut, 0);
}

}  // namespace
}  // namespace holdfast::arena
