// Kills processes at random instants of steps in which tables grow, of updates and of recoveries,
// and compares what the next process finds, byte by byte, with a loop that nobody killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "os/shared_file.h"
#include "table/format.h"
#include "table/testing.h"

namespace holdfast::table {
namespace {

using testing::Directory;
using testing::Reference;

// How many kills must hit an update; kills at other moments do not count.
#ifdef HOLDFAST_SANITIZED
constexpr std::size_t kHits = 40;
#else
const std::size_t kHits = std::getenv("HOLDFAST_TEST_NIGHTLY") != nullptr ? 1000 : 100;
#endif
constexpr std::uint64_t kRunId = 42;
constexpr std::size_t kKeys = 1000;  // Of a push, to each table.

std::vector<Spec> specs() {
  return {{.name = "a",
           .values = 17,
           .optimizer = {.rule = Optimizer::Rule::kAdam},
           .initial = {Initial::Kind::kUniform, -1, 1}},
          {.name = "b",
           .values = 3,
           .type = Type::kBfloat16,
           .optimizer = {.rule = Optimizer::Rule::kMomentum, .momentum = 0.9}}};
}

void die_in(std::int64_t delay_ns) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  const itimerspec delay{{}, {delay_ns / 1'000'000'000, delay_ns % 1'000'000'000 + 1}};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) _exit(4);
  if (timer_settime(timer, 0, &delay, nullptr) != 0) _exit(4);
}

Tables open(const std::string& path) {
  Result<Tables> tables = Tables::open(path, specs(), kRunId);
  if (!tables) {
    std::fprintf(stderr, "%s\n", tables.error().what.c_str());
    _exit(3);
  }
  if (tables->fresh()) tables->begin(0, {});
  return *std::move(tables);
}

// The tables grow all the time, and their indexes are mostly being moved.
testing::Push push_of(Version n, const Spec& spec) {
  return testing::push_of(n, spec, kKeys, kKeys);
}

// Rows come back after they were evicted, and many are evicted for good.
Arguments arguments_of(Version n) {
  Arguments arguments = testing::arguments_of(n);
  if (n % 20 == 9) arguments.evicts_before = n - 6;
  return arguments;
}

void live(const std::string& path, std::size_t threads, std::int64_t delay_ns) {
  Tables tables = open(path);
  tables.unstage();
  for (bool first = true;; first = false) {
    const Version n = tables.version() + 1;
    for (std::size_t t = 0; t < 2; ++t) {
      const auto push = push_of(n, tables.specs()[t]);
      if (!tables.add(t, push.keys, push.gradients)) _exit(5);
    }
    if (!tables.stage(n, {0, n, n}, std::vector<Arguments>(2, arguments_of(n)))) _exit(6);
    // In the first update, threads are still being made. Some die in the midst of another step.
    if (!first) die_in(delay_ns);
    tables.update(threads);
    if (!tables.shrink()) _exit(7);
  }
}

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

// What a kill has interrupted, read without opening the tables.
struct Cut {
  Version version = 0;
  bool updating = false;
  bool row_open = false;
  bool index_moves = false;
};

Cut look(const std::string& path) {
  const auto found = os::find_file(path, os::Access::kRead);
  const auto mapping = os::map_file(*found, os::Access::kRead, path);
  const Header& h = *mapping->as<Header>(0);
  Cut cut{.version = h.version, .updating = h.updating == h.version + 1};
  for (std::size_t i = 0; i < kSlots; ++i) {
    cut.row_open |= mapping->as<Slot>(kSlotsOffset)[i].progress % 2 == 1;
  }
  for (std::size_t t = 0; t < 2; ++t) {
    cut.index_moves |= (mapping->as<TableWords>(kWordsOffset)[t].index >> 8 & 1) != 0;
  }
  return cut;
}

class TableCrash : public ::testing::TestWithParam<std::size_t> {};

TEST_P(TableCrash, LeavesExactlyTheVersionThatWasCommittedOrBegun) {
  const std::size_t threads = GetParam();
  const Directory directory;
  Prng random(5 + threads);
  std::size_t kills = 0;
  std::size_t in_update = 0;
  std::size_t in_row = 0;
  std::size_t in_growth = 0;
  std::size_t in_recovery = 0;
  double range_ns = 300'000;
  for (int job = 0; in_update < kHits; ++job) {
    const std::string path = directory.file(std::to_string(job));
    { const Tables tables = open(path); }
    std::vector<Reference> references;
    for (const Spec& spec : specs()) references.emplace_back(spec);
    Version reached = 0;
    while (in_update < kHits && reached < 60) {
      ASSERT_LT(kills, 30 * kHits) << "the kills miss the updates";
      const auto delay =
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(range_ns)));
      ASSERT_TRUE(killed_in([&] { live(path, threads, delay); }));
      ++kills;
      const Cut cut = look(path);
      in_update += cut.updating;
      in_row += cut.updating && cut.row_open;
      in_growth += cut.updating && cut.index_moves;
      // The range of delays follows what the kills hit.
      range_ns = cut.updating ? range_ns * 1.02 : std::max(range_ns * 0.97, 2e4);
      Version expected = cut.version + (cut.updating ? 1 : 0);
      for (int i = 0; i < 2 && look(path).updating; ++i) {  // The recovery is killed as well.
        const auto soon = static_cast<std::int64_t>(random.below(400'000));
        const bool killed = killed_in([&] {
          die_in(soon);
          const Tables tables = open(path);
        });
        in_recovery += killed && look(path).updating;
      }
      Tables tables = open(path);
      ASSERT_EQ(tables.version(), expected);
      const bool finishes = tables.staged() > expected && random.below(2) == 0;
      if (finishes) tables.update(1);  // A plan may say that the step was committed elsewhere.
      expected += finishes;
      ASSERT_GE(expected, reached);
      for (; reached < expected; ++reached) {
        const Version n = reached + 1;
        for (std::size_t t = 0; t < 2; ++t) {
          references[t].step(push_of(n, specs()[t]), arguments_of(n));
        }
      }
      ASSERT_EQ(tables.position(), (arena::Position{0, expected, expected}));
      ASSERT_EQ(tables.digest(), references[0].digest(0) + references[1].digest(1));
      for (std::size_t t = 0; t < 2; ++t) {
        ASSERT_TRUE(testing::same(tables, t, references[t])) << "table " << t << " at " << expected;
      }
    }
  }
  std::printf(
      "%zu kills: %zu cut an update, %zu of these with a row open, %zu with an index that "
      "was being moved; %zu cut a recovery\n",
      kills, in_update, in_row, in_growth, in_recovery);
  EXPECT_GT(in_row, 0U);
  EXPECT_GT(in_growth, 0U);
  EXPECT_GT(in_recovery, 0U);
}

#ifdef __SANITIZE_THREAD__
INSTANTIATE_TEST_SUITE_P(Threads, TableCrash, ::testing::Values(2U));
#else
INSTANTIATE_TEST_SUITE_P(Threads, TableCrash, ::testing::Values(1U, 2U));
#endif

}  // namespace
}  // namespace holdfast::table
