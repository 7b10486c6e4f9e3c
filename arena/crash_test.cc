// Kills processes at random instants in steps, updates, recoveries, copies and creations, and
// compares what the next process finds, byte by byte, with a reference that nobody killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <tuple>

#include "arena/format.h"
#include "arena/head.h"
#include "arena/testing.h"
#include "base/prng.h"
#include "base/text.h"

namespace holdfast::arena {
namespace {

using testing::Directory;
using testing::Reference;

// How many kills must hit an update or a recovery (kHits: for each optimizer and number of threads)
// and a copy; kills at other moments do not count. Then how many kills there are in a creation. A
// nightly run has four times as many.
#ifdef HOLDFAST_SANITIZED
constexpr std::size_t kHits = 60;
constexpr std::size_t kCutCopies = 10;
constexpr std::size_t kCreations = 15;
#else
const std::size_t kTimes = std::getenv("HOLDFAST_TEST_NIGHTLY") != nullptr ? 4 : 1;
const std::size_t kHits = 500 * kTimes;
const std::size_t kCutCopies = 50 * kTimes;
const std::size_t kCreations = 63 * kTimes;
#endif
#ifdef __SANITIZE_THREAD__
const auto kThreads = ::testing::Values(2U);  // TSan sees nothing in the update of one thread.
#else
const auto kThreads = ::testing::Values(1U, 2U);
#endif
constexpr std::uint64_t kElements = 60'000;
// The kill should hit the second update of a process: in the first, threads are still being made.
constexpr int kStepsInALife = 2;
constexpr std::uint64_t kRunId = 42;
constexpr std::size_t kGradientShift = 1024;

// Kills the caller after `delay_ns`, by a timer of the kernel. Unlike a parent's kill(), the
// timer's interrupt comes in the middle of running code, and is not late on a busy machine.
void die_in(std::int64_t delay_ns) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  const itimerspec delay{{}, {delay_ns / 1'000'000'000, delay_ns % 1'000'000'000 + 1}};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) _exit(4);
  if (timer_settime(timer, 0, &delay, nullptr) != 0) _exit(4);
}

// A random time until death whose range follows what the deaths hit, so that the tests hit as often
// on a slow or busy machine.
class Fuse {
 public:
  explicit Fuse(std::uint64_t seed) : random_(seed) {}
  std::int64_t draw() {
    return static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(range_ns_)));
  }
  void hit() { range_ns_ = std::min(range_ns_ * 1.01, 1e9); }
  void was_too_short() { range_ns_ = std::min(range_ns_ * 1.15, 1e9); }
  void was_too_long() { range_ns_ = std::max(range_ns_ * 0.95, 1e4); }

 private:
  Prng random_;
  double range_ns_ = 500'000;
};

// Runs `life` in a child. True if SIGKILL ended it, false if it returned; all else fails the test.
bool killed_in(const std::function<void()>& life) {
  const pid_t child = fork();
  if (child == 0) {
    life();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << "status " << status;
  return killed;
}

// What step n is made of, the same in every process.
class Script {
 public:
  explicit Script(Optimizer optimizer)
      : layout_{.parameters = {{"a", kElements / 3}, {"b", kElements}},
                .optimizer = optimizer,
                .private_bytes = 200} {
    Prng random(1);
    values_.resize(layout_.region_floats() + kGradientShift);
    for (float& value : values_) value = static_cast<float>(random.below(2000)) * 1e-3F - 1;
  }
  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] std::span<const float> gradients(Version n) const {
    return std::span(values_).subspan(n * 61 % kGradientShift, layout_.region_floats());
  }
  [[nodiscard]] UpdateArguments arguments(Version n) const {
    return {.learning_rate = n % 2 == 0 ? 0.01 : 0.003,
            .momentum = 0.9,
            .weight_decay = n % 3 == 0 ? 0.01 : 0,
            .update_count = n,
            .clip_norm = n % 4 == 0 ? 0.0 : 100.0};  // The norm is about 160.
  }
  [[nodiscard]] std::vector<std::byte> private_bytes(Version n) const {
    return std::vector<std::byte>(layout_.private_bytes, static_cast<std::byte>(n % 251));
  }
  [[nodiscard]] Position position(Version n) const { return {n / 100, n % 100, n * 8}; }

  [[nodiscard]] Arena open(const std::string& path) const {
    Result<Arena> arena = Arena::open(path, layout_, kRunId);
    if (!arena) {
      std::fprintf(stderr, "%s\n", arena.error().what.c_str());
      _exit(3);
    }
    return std::move(*arena);
  }
  void start(Arena& arena) const {
    std::ranges::copy(gradients(0), arena.parameters().begin());
    std::ranges::copy(private_bytes(0), arena.private_bytes(0).begin());
    arena.begin_version0(position(0));
  }
  void stage(Arena& arena) const {
    const Version n = arena.version() + 1;
    std::ranges::copy(gradients(n), arena.gradients().begin());
    arena.stage(n, {private_bytes(n), arguments(n), position(n)});
  }
  void take_step(Arena& arena, std::size_t threads) const {
    stage(arena);
    arena.update(threads);
  }
  // Steps, and death within `delay_ns` of the start or, if `late`, of the last update's start.
  void live(const std::string& path, std::size_t threads, bool late, std::int64_t delay_ns) const {
    if (!late) die_in(delay_ns);
    Arena arena = open(path);
    for (int i = 1; i < kStepsInALife; ++i) take_step(arena, threads);
    stage(arena);
    if (late) die_in(delay_ns);
    arena.update(threads);
    for (;;) pause();
  }

 private:
  Layout layout_;
  std::vector<float> values_;
};

// What a kill interrupted, read from the file without opening the arena.
struct Cut {
  Version version = kNoVersion;
  bool updating = false;
  bool line_open = false;
  std::uint64_t progress = 0;  // Sum over the slots.
};

Cut look(const std::string& path) {
  const auto file = file_at(path, os::Access::kRead);
  const Header& header = file->head.header;
  Cut cut{.version = header.version};
  cut.updating = cut.version != kNoVersion && header.updating == cut.version + 1;
  for (std::size_t i = 0; i < kSlots; ++i) {
    const std::uint64_t progress = file->mapping.as<Slot>(kSlotsOffset)[i].progress;
    cut.progress += progress;
    cut.line_open = cut.line_open || progress % 2 == 1;
  }
  return cut;
}

bool same(std::span<const float> a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0;
}

bool same_state(Arena& arena, const Reference& reference) {
  const std::size_t moments = moment_count(reference.optimizer);
  return same(arena.parameters(), reference.w) &&
         (moments < 1 || same(arena.moments(0), reference.m)) &&
         (moments < 2 || same(arena.moments(1), reference.v));
}

class Crash : public ::testing::TestWithParam<std::tuple<Optimizer, std::size_t>> {};

TEST_P(Crash, LeavesExactlyTheVersionThatWasCommittedOrBegun) {
  const auto [optimizer, threads] = GetParam();
  const Directory directory;
  const std::string path = directory.file("a.arena");
  const Script script(optimizer);
  {
    Arena arena = script.open(path);
    script.start(arena);
  }
  Reference reference(optimizer, script.gradients(0));
  Version reached = 0;
  Fuse fuses[] = {Fuse(6 + threads), Fuse(7 + threads)};
  Fuse recovery_fuse(8 + threads);
  std::size_t kills = 0;
  std::size_t in_update = 0;
  std::size_t in_line = 0;
  std::size_t in_recovery = 0;
  while (in_update + in_recovery < kHits) {
    ASSERT_LT(kills, 20 * kHits) << "the kills miss the updates";
    const bool late = kills % 8 != 0;  // The rest may hit anything.
    Fuse& fuse = fuses[late];
    const std::int64_t delay = fuse.draw();
    ASSERT_TRUE(killed_in([&, t = threads] { script.live(path, t, late, delay); }));
    ++kills;
    Cut cut = look(path);
    const Version expected = cut.version + (cut.updating ? 1 : 0);
    const bool ended = expected == reached + kStepsInALife && !cut.updating;
    if (late) {
      ended ? fuse.was_too_long() : fuse.hit();
    } else {
      expected > reached ? fuse.was_too_long() : fuse.was_too_short();
    }
    in_update += cut.updating;
    in_line += cut.updating && cut.line_open;
    // The recovery is killed as well, again and again, and must still end at the same version.
    for (int i = 0; i < 3 && cut.updating; ++i) {
      const std::int64_t soon = recovery_fuse.draw();
      const bool killed = killed_in([&] {
        die_in(soon);
        const Arena arena = script.open(path);
      });
      kills += killed;
      const Cut again = look(path);
      ASSERT_EQ(again.version + (again.updating ? 1 : 0), expected);
      in_recovery += again.updating && again.progress != cut.progress;
      const bool early = again.updating && again.progress == cut.progress;
      early ? recovery_fuse.was_too_short() : recovery_fuse.was_too_long();
      cut = again;
    }
    Arena arena = script.open(path);
    ASSERT_EQ(arena.version(), expected);
    ASSERT_GE(arena.version(), reached);
    for (; reached < expected; ++reached) {
      reference.update(script.arguments(reached + 1), script.gradients(reached + 1));
    }
    ASSERT_TRUE(same_state(arena, reference)) << "at version " << expected;
    ASSERT_EQ(arena.position(), script.position(expected));
    ASSERT_TRUE(std::ranges::equal(arena.private_bytes(expected), script.private_bytes(expected)));
  }
  std::printf(
      "%zu kills up to version %zu: %zu cut an update, %zu of these with a line open; "
      "%zu cut a recovery\n",
      kills, static_cast<std::size_t>(reached), in_update, in_line, in_recovery);
  EXPECT_GT(in_line, 0);
  EXPECT_GT(in_recovery, 0);
}

INSTANTIATE_TEST_SUITE_P(All, Crash,
                         ::testing::Combine(::testing::Values(Optimizer::kSgd, Optimizer::kMomentum,
                                                              Optimizer::kAdam, Optimizer::kAdamW),
                                            kThreads));

// The same kills without line undo: if they tore nothing, the tests above would prove nothing.
TEST(CrashControl, TearsAnUpdateWithoutUndo) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  const Script script(Optimizer::kMomentum);
  Arena arena = script.open(path);
  script.start(arena);
  auto* const version = reinterpret_cast<std::uint64_t*>(arena.private_bytes(0).data());
  Prng random(3);
  bool torn = false;
  for (int kills = 0; kills < 2000 && !torn; ++kills) {
    std::ranges::copy(script.gradients(0), arena.parameters().begin());
    std::ranges::fill(arena.moments(0), 0.0F);
    *version = 0;
    const auto delay = static_cast<std::int64_t>(random.below(1'000'000));
    ASSERT_TRUE(killed_in([&] {
      die_in(delay);
      for (;;) {
        const std::span<const float> gradients = script.gradients(*version + 1);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          arena.moments(0)[i] = 0.9F * arena.moments(0)[i] + gradients[i];
          arena.parameters()[i] += -0.01F * arena.moments(0)[i];
        }
        publish(*version, *version + 1);
      }
    }));
    Reference reference(Optimizer::kMomentum, script.gradients(0));
    const UpdateArguments arguments{.learning_rate = 0.01, .momentum = 0.9};
    for (Version n = 1; n <= *version; ++n) reference.update(arguments, script.gradients(n));
    const bool before = same_state(arena, reference);
    reference.update(arguments, script.gradients(*version + 1));
    torn = !before && !same_state(arena, reference);
  }
  EXPECT_TRUE(torn);
}

TEST(CrashInStage, LeavesNothingStaged) {
  const Directory directory;
  const Script script(Optimizer::kSgd);
  Arena arena = script.open(directory.file("a.arena"));
  script.start(arena);
  const std::size_t bytes = script.layout().private_bytes;
  for (const bool staged_before : {false, true}) {
    ASSERT_TRUE(killed_in([&] {
      // It reads memory that cannot be read, so the death is sure to come in the midst of stage().
      signal(SIGSEGV, [](int) { raise(SIGKILL); });
      void* const nothing = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (staged_before) script.stage(arena);
      const std::span unreadable(static_cast<const std::byte*>(nothing), bytes);
      arena.stage(1, {unreadable, script.arguments(1), script.position(1)});
    }));
    EXPECT_EQ(arena.staged(), 0) << "staged before: " << staged_before;
  }
}

TEST(CrashInCopy, NeverLooksClean) {
  const Directory directory;
  const Script script(Optimizer::kAdam);
  Arena source = script.open(directory.file("source"));
  script.start(source);
  script.take_step(source, 1);
  const std::string path = directory.file("copy");
  Fuse fuse(5);
  std::size_t cut = 0;
  std::size_t kills = 0;
  for (; cut < kCutCopies && kills < 100 * kCutCopies; ++kills) {
    {  // Something whole to overwrite, of another version.
      Arena copy = script.open(path);
      if (!copy.fresh()) copy.invalidate();
      script.start(copy);
    }
    const std::int64_t delay = fuse.draw();
    killed_in([&] {
      Arena copy = script.open(path);
      die_in(delay);
      if (!testing::copy(copy, source.path(), 1, copy.layout().private_bytes)) _exit(3);
    });
    Arena copy = script.open(path);
    if (copy.fresh()) {
      ++cut;
      fuse.hit();
      continue;
    }
    const Reference start(Optimizer::kAdam, script.gradients(0));
    const bool untouched = copy.version() == 0 && same(copy.parameters(), start.w);
    const bool whole = copy.version() == 1 && copy.digest() == source.digest() &&
                       copy.position() == script.position(1) &&
                       std::ranges::equal(copy.private_bytes(1), script.private_bytes(1));
    ASSERT_TRUE(untouched || whole) << "version " << copy.version();
    untouched ? fuse.was_too_short() : fuse.was_too_long();
  }
  EXPECT_EQ(cut, kCutCopies) << kills << " kills";
}

TEST(CrashInCreation, LeavesNothingThatCanNotBeOpened) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  const Script script(Optimizer::kSgd);
  Prng random(9);
  for (std::size_t i = 0; i < kCreations; ++i) {
    std::filesystem::remove(path);
    const auto delay = static_cast<std::int64_t>(random.below(500'000));
    killed_in([&] {
      die_in(delay);
      Arena arena = script.open(path);
      script.start(arena);
    });
    const Arena arena = script.open(path);
    ASSERT_TRUE(arena.fresh() || arena.version() == 0);
  }
}

// A process that is stopped in the midst of an update would go on writing when it wakes.
TEST(CrashOfNobody, IsAnErrorWhileAStoppedProcessIsInAnUpdate) {
  const Directory directory;
  const std::string path = directory.file("a.arena");
  const Script script(Optimizer::kAdam);
  {
    Arena arena = script.open(path);
    script.start(arena);
  }
  const pid_t child = fork();
  if (child == 0) {
    Arena arena = script.open(path);
    for (;;) script.take_step(arena, 1);
  }
  for (bool updating = false; !updating;) {
    ASSERT_EQ(kill(child, SIGSTOP), 0);
    ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
    updating = look(path).updating;
    if (!updating) {
      ASSERT_EQ(kill(child, SIGCONT), 0);
    }
  }
  const Result<Arena> early = Arena::open(path, script.layout(), kRunId);
  ASSERT_FALSE(early);
  EXPECT_NE(early.error().what.find("alive"), std::string::npos) << early.error().what;
  const Version version = look(path).version;
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const Arena arena = script.open(path);
  EXPECT_EQ(arena.version(), version + 1);
}

}  // namespace
}  // namespace holdfast::arena
