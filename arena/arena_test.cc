// The arena within one process: layout, protocol, arithmetic, refusals. Deaths are in
// crash_test.cc.
#include "arena/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <tuple>
#include <vector>

#include "arena/format.h"
#include "arena/head.h"
#include "arena/testing.h"
#include "base/text.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace holdfast::arena {
namespace {

using testing::Directory;
using testing::Reference;

Layout small(Optimizer optimizer = Optimizer::kMomentum) {
  return {.parameters = {{"fc.weight", 100}, {"fc.bias", 10}},
          .optimizer = optimizer,
          .private_bytes = 24};
}

Arena must_open(const std::string& path, const Layout& layout, std::uint64_t run_id = 7) {
  Result<Arena> arena = Arena::open(path, layout, run_id);
  if (!arena) ADD_FAILURE() << arena.error().what;
  return std::move(*arena);
}

std::vector<std::byte> bytes(std::uint8_t value, std::size_t count = 24) {
  return std::vector<std::byte>(count, std::byte{value});
}

void fill(std::span<float> values, float scale) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * std::sin(static_cast<float>(i + 1));
  }
}

void start(Arena& arena) {
  for (std::size_t i = 0; i < arena.layout().parameters.size(); ++i) fill(arena.parameter(i), 1);
  std::ranges::copy(bytes(100, arena.layout().private_bytes), arena.private_bytes(0).begin());
  arena.begin_version0({.epoch = 1});
}

void take_step(Arena& arena, std::size_t threads = 1) {
  const Version n = arena.version() + 1;
  for (std::size_t i = 0; i < arena.layout().parameters.size(); ++i) {
    fill(arena.gradient(i), 0.1F * static_cast<float>(n + i));
  }
  const auto mine = bytes(static_cast<std::uint8_t>(n), arena.layout().private_bytes);
  arena.stage(n, {mine,
                  {.learning_rate = 0.1, .momentum = 0.9, .update_count = n},
                  {.epoch = 1, .index = n, .samples = 32 * n}});
  arena.update(threads);
}

TEST(Layout, SurvivesItsTextForm) {
  Layout layout = small(Optimizer::kAdamW);
  layout.parameters.push_back({"a name\nwith 3 odd characters", 0});
  Layout back;
  ASSERT_TRUE(Layout::from_text(layout.to_text(), back));
  EXPECT_EQ(difference(layout, back), "");
  EXPECT_EQ(layout.fingerprint(), back.fingerprint());
}

TEST(Layout, OfWhatIsHeldIsNoRanksOwn) {
  const Layout held = Layout::held_for(3, 24);
  Layout back;
  ASSERT_TRUE(Layout::from_text(held.to_text(), back));
  EXPECT_EQ(difference(held, back), "");
  EXPECT_EQ(difference(held, Layout::held_for(4, 24)),
            "the state is held for rank 3 there and held for rank 4 here");
  EXPECT_EQ(difference({.private_bytes = 24}, held),
            "the state is a rank's own there and held for rank 3 here");
}

TEST(Layout, RefusesEveryTextThatIsCutShort) {
  const std::string text = small().to_text();
  Layout out;
  for (std::size_t n = 0; n < text.size(); ++n)
    EXPECT_FALSE(Layout::from_text(text.substr(0, n), out));
}

TEST(Layout, KeepsRegionsApartAndInLines) {
  for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kMomentum, Optimizer::kAdam}) {
    const Layout layout = small(optimizer);
    std::vector<std::uint64_t> begins{layout.gradients_offset(), layout.parameters_offset()};
    for (std::size_t k = 0; k < moment_count(optimizer); ++k)
      begins.push_back(layout.moments_offset(k));
    begins.push_back(layout.private_offset(0));
    EXPECT_EQ(begins[0] % kPageBytes, 0);
    EXPECT_GE(begins[0], kLayoutOffset + layout.to_text().size());
    for (std::size_t i = 1; i < begins.size(); ++i) {
      EXPECT_EQ(begins[i] % 128, 0);
      EXPECT_GE(begins[i], begins[i - 1] + layout.gradients_bytes());
    }
    EXPECT_GE(layout.private_offset(1), layout.private_offset(0) + layout.private_bytes);
    EXPECT_GE(layout.file_bytes(), layout.private_offset(1) + layout.private_bytes);
    EXPECT_EQ(layout.offset(1), 128);
    EXPECT_EQ(layout.region_floats(), 160);
  }
}

TEST(Layout, HasAsManyPagesForItsTextAsThatNeeds) {
  const auto expect = [](const Layout& layout) {
    const std::uint64_t end = kLayoutOffset + layout.to_text().size();
    ASSERT_EQ(layout.gradients_offset(), (end + kPageBytes - 1) / kPageBytes * kPageBytes);
  };
  Layout one = small();
  for (int letters = 0; letters < 5000; ++letters) {
    expect(one);
    one.parameters[1].name += 'x';
  }
  Layout many = Layout::held_for(12, 3456);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    expect(many);
    many.parameters.push_back({std::string(i % 13, 'x'), i * i});
  }
}

TEST(Arena, IsFreshAndZeroUntilItsFirstVersionIsCommitted) {
  const Directory directory;
  Arena arena = must_open(directory.file("deep/er/a.arena"), small());
  EXPECT_TRUE(arena.fresh());
  EXPECT_EQ(arena.staged(), kNoVersion);
  EXPECT_TRUE(std::ranges::all_of(arena.moment(0, 1), [](float x) { return x == 0; }));
  start(arena);
  EXPECT_EQ(arena.version(), 0);
  EXPECT_EQ(arena.staged(), 0);
  EXPECT_EQ(arena.position(), (Position{.epoch = 1}));
  struct stat status {};
  ASSERT_EQ(stat(arena.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(Arena, IsReopenedWithAllThatWasCommitted) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  std::vector<float> weights;
  std::vector<float> moments;
  {
    Arena arena = must_open(path, small());
    start(arena);
    for (int i = 0; i < 3; ++i) take_step(arena);
    weights.assign(arena.parameters().begin(), arena.parameters().end());
    moments.assign(arena.moments(0).begin(), arena.moments(0).end());
  }
  Arena arena = must_open(path, small());
  EXPECT_EQ(arena.version(), 3);
  EXPECT_EQ(arena.position(), (Position{.epoch = 1, .index = 3, .samples = 96}));
  EXPECT_TRUE(std::ranges::equal(arena.parameters(), weights));
  EXPECT_TRUE(std::ranges::equal(arena.moments(0), moments));
  EXPECT_TRUE(std::ranges::equal(arena.private_bytes(3), bytes(3)));
  EXPECT_TRUE(std::ranges::equal(arena.private_bytes(2), bytes(2)));
}

TEST(Arena, KeepsThePrivateBytesOfItsVersionThroughAVoidStep) {
  const Directory directory;
  Arena arena = must_open(directory.file("a.arena"), small());
  start(arena);
  take_step(arena);
  const auto other = bytes(99);
  arena.stage(2, {other, {}, {.index = 2}});
  EXPECT_EQ(arena.staged(), 2);
  arena.unstage();
  EXPECT_EQ(arena.staged(), 1);
  EXPECT_TRUE(std::ranges::equal(arena.private_bytes(1), bytes(1)));
  EXPECT_EQ(arena.position().index, 1);
  take_step(arena);
  EXPECT_EQ(arena.version(), 2);
}

TEST(Arena, FinishesAStagedVersionForADeadOwner) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  const auto step = [](Arena& arena) {
    fill(arena.gradient(0), 0.5F);
    const auto mine = bytes(1);
    arena.stage(1, {mine, {.learning_rate = 0.1, .momentum = 0.9}, {.index = 1}});
  };
  {
    Arena arena = must_open(path, small());
    start(arena);
    step(arena);
  }
  Arena whole = must_open(directory.file("b.arena"), small());
  start(whole);
  step(whole);
  whole.update(1);

  Arena arena = must_open(path, small());
  EXPECT_EQ(arena.version(), 0);
  EXPECT_EQ(arena.staged(), 1);
  arena.finish();
  EXPECT_EQ(arena.version(), 1);
  EXPECT_EQ(arena.digest(), whole.digest());
  arena.finish();
  EXPECT_EQ(arena.version(), 1);
}

TEST(Arena, IsMadeAnewForAnotherRunAndWhenItHasNoVersion) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  {
    Arena arena = must_open(path, small(), 7);
    start(arena);
  }
  {
    Arena arena = must_open(path, small(Optimizer::kAdam), 8);
    EXPECT_TRUE(arena.fresh());
    arena.parameter(0)[0] = 5;
  }
  Arena arena = must_open(path, small(Optimizer::kAdam), 8);
  EXPECT_TRUE(arena.fresh());
  EXPECT_EQ(arena.parameter(0)[0], 0);
}

TEST(Arena, NamesTheFirstDifferenceOfAnotherLayout) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  {
    Arena arena = must_open(path, small());
    start(arena);
  }
  Layout larger = small();
  larger.parameters[1].elements = 20;
  Layout longer = small();
  longer.parameters.push_back({"extra", 1});
  Layout shy = small();
  shy.private_bytes = 0;
  const std::vector<std::pair<Layout, std::string>> cases{
      {larger, "parameter 1 is fc.bias (10) there and fc.bias (20) here"},
      {longer, "parameter 2, extra (1), is only here"},
      {small(Optimizer::kAdam), "the optimizer is SGD with momentum there and Adam here"},
      {shy, "24 bytes there and 0 here"}};
  for (const auto& [layout, words] : cases) {
    const Result<Arena> arena = Arena::open(path, layout, 7);
    ASSERT_FALSE(arena);
    EXPECT_EQ(arena.error().blame, Blame::kUser);
    EXPECT_NE(arena.error().what.find(words), std::string::npos) << arena.error().what;
  }
}

TEST(Arena, RefusesADamagedFileByName) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  const auto damage = [&](auto&& how) {
    {
      std::filesystem::remove(path);
      Arena arena = must_open(path, small());
      start(arena);
      how();
    }
    const Result<Arena> arena = Arena::open(path, small(), 7);
    EXPECT_FALSE(arena);
    if (!arena) {
      EXPECT_NE(arena.error().what.find(path), std::string::npos);
    }
  };
  const auto poke = [&](off_t at) {
    const int fd = ::open(path.c_str(), O_WRONLY);
    EXPECT_EQ(pwrite(fd, "\x55", 1, at), 1);
    close(fd);
  };
  damage([&] { EXPECT_EQ(truncate(path.c_str(), 0), 0); });
  damage([&] { EXPECT_EQ(truncate(path.c_str(), 100), 0); });
  damage([&] { EXPECT_EQ(truncate(path.c_str(), kPageBytes), 0); });
  damage([&] { poke(0); });
  damage([&] { poke(offsetof(Fixed, file_bytes)); });
  damage([&] { poke(offsetof(Header, staged) + 3); });
  damage([&] { poke(offsetof(Header, records[0].used.count)); });
}

TEST(Arena, RefusesAFormerFormatByItsNumber) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  {
    Arena arena = must_open(path, small());
    start(arena);
  }
  {
    const auto file = file_at(path, os::Access::kWrite);
    ASSERT_TRUE(file);
    Fixed& fixed = file->mapping.as<Header>(0)->fixed;
    fixed.format = 2;
    fixed.check = check_of(fixed);
  }
  const Result<Arena> arena = Arena::open(path, small(), 7);
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().what,
            cat("The arena ", path, " has format 2, this program knows 4; remove it."));
}

TEST(Arena, KnowsWhichPrivateBytesOfEachVersionAreInUse) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  using Used = std::vector<Range>;
  const Used all{{0, 24}};
  const Used some{{0, 10}, {10, 0}, {23, 1}};
  {
    Arena arena = must_open(path, small());
    start(arena);
    arena.stage(1, {.private_bytes = bytes(1), .used = some});
    EXPECT_EQ(arena.used(0), all);
    EXPECT_EQ(arena.used(1), some);
    arena.stage(1, {.private_bytes = bytes(1)});
    EXPECT_EQ(arena.used(1), all);
    arena.stage(1, {.private_bytes = bytes(1), .used = some});
  }
  EXPECT_EQ(must_open(path, small()).used(1), some);
}

TEST(Arena, SaysHowMuchRoomItNeeds) {
  const Directory directory;
  Layout huge = small();
  huge.parameters[0].elements = std::uint64_t{1} << 44;
  const Result<Arena> arena = Arena::open(directory.file("a.arena"), huge, 7);
  ASSERT_FALSE(arena);
  EXPECT_NE(arena.error().what.find(cat((huge.file_bytes() >> 20) + 1, " MiB are needed")),
            std::string::npos)
      << arena.error().what;
  EXPECT_TRUE(std::filesystem::is_empty(directory.file("")));
}

TEST(Arena, IsMadeOfWhatWasPreparedForIt) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  const Layout layout = small();
  const auto prepare = [&](std::uint64_t bytes) {
    auto made = os::make_unnamed_file(directory.file(""), bytes);
    EXPECT_TRUE(made) << made.error().what;
    return std::make_unique<os::Unnamed>(*std::move(made));
  };
  const auto inode_of = [](const auto& file) {
    struct stat status {};
    if constexpr (std::is_same_v<std::decay_t<decltype(file)>, std::string>) {
      EXPECT_EQ(::stat(file.c_str(), &status), 0);
    } else {
      EXPECT_EQ(::fstat(file.get(), &status), 0);
    }
    return status.st_ino;
  };
  for (const std::uint64_t more :
       {std::uint64_t{0}, std::uint64_t{4096}}) {  // A file of another size is not used.
    auto prepared = prepare(layout.file_bytes() + more);
    EXPECT_TRUE(std::filesystem::is_empty(directory.file(""))) << "it goes with this process";
    const auto inode = inode_of(prepared->file);
    auto arena = Arena::open(path, layout, 7, std::move(prepared));
    ASSERT_TRUE(arena) << arena.error().what;
    EXPECT_EQ(inode_of(path) == inode, more == 0);
    EXPECT_TRUE(arena->fresh());
    start(*arena);
    take_step(*arena);
    // An arena that exists is opened, and the prepared file is not used.
    auto again = Arena::open(path, layout, 7, prepare(layout.file_bytes()));
    ASSERT_TRUE(again);
    EXPECT_EQ(again->version(), 1U);
    std::filesystem::remove(path);
  }
}

TEST(Arena, CopiesAnotherRanksState) {
  const Directory directory;
  Arena source = must_open(directory.file("a.arena"), small(Optimizer::kAdam));
  start(source);
  take_step(source);
  take_step(source);
  for (const bool with_private : {false, true}) {
    Arena copy =
        must_open(directory.file(with_private ? "b.arena" : "c.arena"), small(Optimizer::kAdam));
    const Status copied =
        testing::copy(copy, source.path(), 2, with_private ? copy.layout().private_bytes : 0);
    ASSERT_TRUE(copied) << copied.error().what;
    EXPECT_EQ(copy.version(), 2);
    EXPECT_EQ(copy.staged(), 2);
    EXPECT_EQ(copy.position(), source.position());
    EXPECT_EQ(copy.digest(), source.digest());
    EXPECT_EQ(std::ranges::equal(copy.private_bytes(2), bytes(2)), with_private);
  }
}

TEST(Arena, DoesNotCopyWhatIsNotTheExpectedVersion) {
  const Directory directory;
  Arena source = must_open(directory.file("a.arena"), small());
  start(source);
  Arena copy = must_open(directory.file("b.arena"), small());
  EXPECT_FALSE(testing::copy(copy, source.path(), 1, 0));
  EXPECT_FALSE(testing::copy(copy, directory.file("none"), 0, 0));
  Arena other = must_open(directory.file("c.arena"), small(Optimizer::kAdam));
  start(other);
  const Status of_another = testing::copy(copy, other.path(), 0, 0);
  ASSERT_FALSE(of_another);
  EXPECT_NE(of_another.error().what.find("its model or optimizer differs"), std::string::npos);
  EXPECT_NE(of_another.error().what.find("the optimizer is Adam there and"), std::string::npos);
  EXPECT_TRUE(copy.fresh());
}

TEST(Arena, GoesBackToTheVersionOfACheckpoint) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  {
    Arena arena = must_open(path, small());
    start(arena);
    for (int i = 0; i < 5; ++i) take_step(arena);
    arena.invalidate();
    fill(arena.parameters(), 3);
    arena.begin(
        4, {.index = 4});  // Update 5 is recorded as begun before; it must not be finished now.
  }
  Arena arena = must_open(path, small());
  EXPECT_EQ(arena.version(), 4);
  EXPECT_EQ(arena.position().index, 4);
}

// An optimizer, its decay, the norm to clip to, threads.
class Arithmetic
    : public ::testing::TestWithParam<std::tuple<Optimizer, double, double, std::size_t>> {};

TEST_P(Arithmetic, GivesTheBitsOfThePlainLoopOnAnyNumberOfThreads) {
  const auto [optimizer, decay, clip, threads] = GetParam();
  const Directory directory;
  Layout layout{.parameters = {{"a", 50'001}, {"b", 7}, {"c", 33'333}}, .optimizer = optimizer};
  Arena arena = must_open(directory.file("a.arena"), layout);
  start(arena);
  Reference reference(optimizer, arena.parameters());
  for (Version n = 1; n <= 4; ++n) {
    for (std::size_t i = 0; i < 3; ++i) fill(arena.gradient(i), 0.3F / static_cast<float>(n));
    const UpdateArguments arguments{.learning_rate = 0.01,
                                    .momentum = 0.9,
                                    .weight_decay = decay,
                                    .update_count = n,
                                    .clip_norm = clip};
    arena.stage(n, {{}, arguments, {}});
    reference.update(arguments, arena.gradients());
    arena.update(threads);
  }
  const auto same = [](std::span<const float> a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0;
  };
  EXPECT_TRUE(same(arena.parameters(), reference.w));
  if (moment_count(optimizer) > 0) {
    EXPECT_TRUE(same(arena.moments(0), reference.m));
  }
  if (moment_count(optimizer) > 1) {
    EXPECT_TRUE(same(arena.moments(1), reference.v));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Arithmetic,
                         ::testing::Combine(::testing::Values(Optimizer::kSgd, Optimizer::kMomentum,
                                                              Optimizer::kAdam, Optimizer::kAdamW),
                                            ::testing::Values(0.0, 0.05),
                                            ::testing::Values(0.0, 30.0),  // Norms: 61 down to 15.
                                            ::testing::Values(1U, 2U, 3U)));

TEST(Arena, ConvergesOnAParabola) {  // Guards against a sign or a scale wrong in both loops.
  const Directory directory;
  for (const Optimizer optimizer : {Optimizer::kSgd, Optimizer::kMomentum, Optimizer::kAdam}) {
    Arena arena =
        must_open(directory.file(cat("p", static_cast<int>(optimizer))), small(optimizer));
    start(arena);
    for (Version n = 1; n <= 400; ++n) {
      std::ranges::copy(arena.parameters(), arena.gradients().begin());
      const auto mine = bytes(0);
      arena.stage(n, {mine, {.learning_rate = 0.03, .momentum = 0.9, .update_count = n}, {}});
      arena.update(1);
    }
    EXPECT_LT(std::abs(arena.parameter(0)[0]), 1e-2F) << name(optimizer);
  }
}

// How much memory the file takes.
std::uint64_t memory_of(const Arena& arena) {
  struct stat status {};
  EXPECT_EQ(::stat(arena.path().c_str(), &status), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(Arena, TakesThePrivateMemoryThatIsUsed) {
  constexpr std::uint64_t kMuch = 64 << 20;
  constexpr Range kPart{10 << 20, 5 << 20};
  const Directory directory;
  Layout layout = small();
  layout.private_bytes = kMuch;
  const auto must = [&] {
    Result<Arena> arena = Arena::open(directory.file("a"), layout, 7, nullptr, Memory::kAsUsed);
    if (!arena) ADD_FAILURE() << arena.error().what;
    return std::move(*arena);
  };
  {
    Arena arena = must();
    EXPECT_LT(memory_of(arena), 4U << 20);
    ASSERT_TRUE(arena.take(0, kPart));
    EXPECT_GE(memory_of(arena), kPart.bytes) << "before anything is written";
    const auto part = arena.private_bytes(0).subspan(kPart.offset, kPart.bytes);
    std::ranges::fill(part, std::byte{9});
    arena.begin_version0({});
  }
  Arena arena = must();
  const std::uint64_t before = memory_of(arena);
  EXPECT_LT(before, kPart.bytes + (6U << 20));
  ASSERT_TRUE(arena.take(0, kPart));
  EXPECT_EQ(memory_of(arena), before) << "it is there";
  const auto part = arena.private_bytes(0).subspan(kPart.offset, kPart.bytes);
  EXPECT_TRUE(std::ranges::all_of(part, [](std::byte b) { return b == std::byte{9}; }));
  arena.clear_private();
  EXPECT_EQ(part.front(), std::byte{});
  EXPECT_LT(memory_of(arena), 4U << 20);
  Arena all = must_open(directory.file("b"), layout);
  EXPECT_GE(memory_of(all), 2 * kMuch);
  all.private_bytes(1).front() = std::byte{1};
  all.clear_private();
  EXPECT_EQ(all.private_bytes(1).front(), std::byte{});
  EXPECT_GE(memory_of(all), 2 * kMuch);
}

#if defined(__x86_64__)
TEST(Arena, GivesTheSameBitsWhateverFloatModeTheCallerSet) {
  const Directory directory;
  std::vector<std::uint64_t> digests;
  for (const unsigned mode : {0x1f80U, 0x1f80U | 0x8040U | 0x6000U}) {
    Arena arena = must_open(directory.file(cat("m", mode)), small(Optimizer::kMomentum));
    start(arena);
    fill(arena.gradient(0), 1e-39F);
    arena.stage(1, {arena.private_bytes(1), {.learning_rate = 0.1, .momentum = 0.9}, {}});
    const unsigned before = _mm_getcsr();
    _mm_setcsr(mode);
    arena.update(1);
    EXPECT_EQ(_mm_getcsr() & 0xffc0U, mode);
    _mm_setcsr(before);
    EXPECT_NE(arena.moment(0, 0)[0], 0);
    digests.push_back(arena.digest());
  }
  EXPECT_EQ(digests[0], digests[1]);
}
#endif

}  // namespace
}  // namespace holdfast::arena
