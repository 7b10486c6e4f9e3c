// What comes of another host's files, in an arena: all of it, or nothing.
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

class ArrivalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    pattern(std::as_writable_bytes(source_.parameter(0)), 1);
    pattern(std::as_writable_bytes(source_.moment(0, 0)), 2);
    pattern(std::as_writable_bytes(source_.moment(1, 0)), 3);
    pattern(source_.private_bytes(kVersion), 4);
    source_.begin(kVersion, {.epoch = 1, .index = 2, .samples = 3});
    hold(held_, kVersion);
    pattern(lost_.private_bytes(kVersion), 9);  // What is of no use stays.
  }
  Arena open(const std::string& name, const Layout& layout = kLayout) {
    auto arena = Arena::open(directory_.file(name), layout, kArrivalRun);
    EXPECT_TRUE(arena) << arena.error().what;
    return *std::move(arena);
  }
  PrivateCopy make(const std::string& name, std::uint64_t bytes = kPrivate - kCommon) {
    auto made = PrivateCopy::make(directory_.file(name), kArrivalRun, kWard, bytes);
    EXPECT_TRUE(made) << made.error().what;
    return *std::move(made);
  }
  static void hold(PrivateCopy& copy, Version v, const std::vector<Range>& used = kUsed) {
    copy.expect(v);
    pattern(copy.place(v), 5);
    copy.take(v, used);
  }

  // As runtime/worker/state_transfer does it, but for the network.
  using Place = std::function<Result<std::span<std::byte>>(const Arrival::Coming&, std::size_t)>;
  static Status bring(const Arrival::Coming& coming, const Place& place, std::size_t ranges) {
    const auto file = os::read_file(coming.from);
    EXPECT_TRUE(file);
    for (std::size_t i = 0; i < ranges; ++i) {
      const auto to = place(coming, i);
      if (!to) return to.error();
      EXPECT_EQ(to->size(), coming.ranges[i].bytes);
      std::memcpy(to->data(), file->data() + coming.ranges[i].offset, to->size());
    }
    return {};
  }
  static Arrival::Coming coming_of(const Arena& arena, Version v = kVersion) {
    return {.file_bytes = arena.layout().file_bytes(),
            .ranges = ranges_to_copy(arena.layout(), v, kCommon),
            .from = arena.path()};
  }
  static Arrival::Coming coming_of(const PrivateCopy& held, Version v = kVersion) {
    return {.file_bytes = held.file_bytes(),
            .ranges = held.facts().ranges_to_copy(v),
            .from = held.path()};
  }
  static Status bring_state(Arrival& arrival, const Arrival::Coming& coming) {
    const auto place = [&](const auto& c, std::size_t i) { return arrival.place(c, i); };
    if (auto brought = bring(coming, place, coming.ranges.size()); !brought) return brought;
    return arrival.came(coming);
  }
  static Status bring_held(Arrival& arrival, const Arrival::Coming& coming, Rank ward = kWard) {
    const auto place = [&](const auto& c, std::size_t i) { return arrival.place_held(c, i, ward); };
    if (auto brought = bring(coming, place, coming.ranges.size()); !brought) return brought;
    return arrival.came_held(coming, ward);
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
      const auto held = held_.place(kVersion).subspan(offset, bytes);
      std::ranges::copy(held, all.subspan(kCommon + offset).begin());
    }
    EXPECT_TRUE(std::ranges::equal(lost.private_bytes(kVersion), all));
  }

  Directory directory_;
  Arena source_ = open("rank-0.arena");
  PrivateCopy held_ = make("rank-3.held-by-0");
  Arena lost_ = open("rank-3.arena");
};

TEST_F(ArrivalTest, BringsEachByteToItsPlace) {
  for (const bool state_is_here : {false, true}) {
    for (const bool held_is_here : {false, true}) {
      lost_.invalidate();
      pattern(lost_.private_bytes(kVersion), 9);
      Arrival arrival(lost_, kVersion, kCommon, true);
      const auto state =
          state_is_here ? arrival.copy(source_.path()) : bring_state(arrival, coming_of(source_));
      ASSERT_TRUE(state) << state.error().what;
      EXPECT_FALSE(arrival.end()) << "the half of it is no version";
      EXPECT_TRUE(lost_.fresh());
      const auto held =
          held_is_here ? arrival.copy_held(held_) : bring_held(arrival, coming_of(held_));
      ASSERT_TRUE(held) << held.error().what;
      EXPECT_TRUE(lost_.fresh());
      ASSERT_TRUE(arrival.end());
      expect_whole(lost_);
    }
  }
}

// What has come but for its digest, or only in part, is nothing; the same may come once more.
TEST_F(ArrivalTest, WhatHasNotComeWholeCountsForNothing) {
  lost_.begin(2, {});
  Arrival arrival(lost_, kVersion, kCommon, true);
  const auto coming = coming_of(source_);
  const auto place = [&](const auto& c, std::size_t i) { return arrival.place(c, i); };
  for (std::size_t ranges = 0; ranges <= coming.ranges.size(); ++ranges) {
    ASSERT_TRUE(bring(coming, place, ranges));
    EXPECT_FALSE(arrival.end());
    // Nothing is touched before the second range.
    EXPECT_EQ(lost_.version(), ranges < 2 ? 2 : kNoVersion) << ranges;
  }
  ASSERT_TRUE(bring_state(arrival, coming));
  const auto rest = coming_of(held_);
  const auto to_rest = [&](const auto& c, std::size_t i) {
    return arrival.place_held(c, i, kWard);
  };
  for (std::size_t ranges = 0; ranges <= rest.ranges.size(); ++ranges) {
    ASSERT_TRUE(bring(rest, to_rest, ranges));
    EXPECT_FALSE(arrival.end());
  }
  // One that is begun anew is not here any more.
  ASSERT_TRUE(bring_held(arrival, rest));
  ASSERT_TRUE(bring(coming, place, 2));
  EXPECT_FALSE(arrival.end());
  EXPECT_TRUE(lost_.fresh());
  ASSERT_TRUE(bring_state(arrival, coming));
  ASSERT_TRUE(arrival.end());
  expect_whole(Arena(std::move(lost_)));
}

TEST_F(ArrivalTest, WhatIsNotExpectedTouchesNothing) {
  lost_.begin(2, {});
  const auto refused = [&](const Arrival::Coming& coming, const std::string& why) {
    Arrival arrival(lost_, kVersion, kCommon, true);
    const auto came = bring_state(arrival, coming);
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
    Arrival arrival(lost_, kVersion, kCommon, true);
    const auto came = bring_held(arrival, coming, ward);
    ASSERT_FALSE(came) << why;
    EXPECT_NE(came.error().what.find(why), std::string::npos) << came.error().what;
    EXPECT_EQ(lost_.version(), 2U) << why;
  };
  refused(coming_of(held_), kWard + 1, "is of rank 3");
  auto coming = coming_of(held_);
  coming.ranges.pop_back();
  refused(coming, kWard, "other parts come");
  PrivateCopy later = make("later");
  hold(later, kVersion + 1);
  refused(coming_of(later, kVersion + 1), kWard, "does not hold the 20000");
  PrivateCopy smaller = make("smaller", 8'000);
  hold(smaller, kVersion, {{0, 1}});
  refused(coming_of(smaller), kWard, "does not hold the 20000");
}

// Of a held copy nothing of which is in use only the beginning comes.
TEST_F(ArrivalTest, NothingInUseIsAllOfIt) {
  hold(held_, kVersion, {{0, 0}});
  const auto coming = coming_of(held_);
  EXPECT_EQ(coming.ranges.size(), 1U);
  Arrival arrival(lost_, kVersion, kCommon, true);
  ASSERT_TRUE(bring_state(arrival, coming_of(source_)));
  EXPECT_FALSE(bring_held(arrival, coming, kWard + 1));
  EXPECT_FALSE(arrival.end());
  ASSERT_TRUE(bring_held(arrival, coming));
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
        Arrival arrival(lost_, kVersion, kCommon, true);
        if (!bring_state(arrival, coming_of(source_)) || !bring_held(arrival, coming_of(held_)) ||
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
