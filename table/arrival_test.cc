// Copies of tables: the same rows, whatever the file that they come from looks like.
#include "table/arrival.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "os/files.h"
#include "table/testing.h"

namespace holdfast::table {
namespace {

using testing::arguments_of;
using testing::Directory;
using testing::Push;
using testing::push_of;

constexpr std::uint64_t kThisRun = 77;
constexpr std::size_t kKeys = 3000;

std::vector<Spec> some_tables() {
  return {{.name = "wide", .values = 33, .optimizer = {.rule = Optimizer::Rule::kAdam}},
          {.name = "narrow", .values = 1},
          {.name = "never touched", .values = 4}};
}

Tables opened(const std::string& path, const std::vector<Spec>& specs,
              std::uint64_t run = kThisRun) {
  auto made = Tables::open(path, specs, run);
  EXPECT_TRUE(made) << made.error().what;
  return *std::move(made);
}

void stage_step(Tables& tables, Version n) {
  for (std::size_t t = 0; t < 2; ++t) {
    const Push push = push_of(n, tables.specs()[t], kKeys, 2000);
    ASSERT_TRUE(tables.add(t, push.keys, push.gradients));
  }
  ASSERT_TRUE(tables.stage(n, {}, std::vector<Arguments>(3, arguments_of(n))));
}

void make_steps(Tables& tables, Version to) {
  if (tables.fresh()) tables.begin(0, {});
  while (tables.version() < to) {
    stage_step(tables, tables.version() + 1);
    tables.update(1);
  }
}

TEST(TableArrival, GoesOnWithTheSameBits) {
  const Directory folder;
  Tables from = opened(folder.file("from"), some_tables());
  make_steps(from, 7);
  Tables to = opened(folder.file("to"), some_tables());
  Arrival arrival(to, kThisRun, 7);
  ASSERT_TRUE(arrival.copy(folder.file("from")));
  EXPECT_EQ(to.version(), 7U);
  EXPECT_EQ(to.digest(), from.digest());
  EXPECT_EQ(to.updates(0), from.updates(0));
  EXPECT_EQ(to.keys(0), from.keys(0));
  make_steps(from, 12);
  make_steps(to, 12);
  EXPECT_EQ(to.digest(), from.digest());
  EXPECT_EQ(to.rows(2), 0U);
  to = opened(folder.file("to"), some_tables());  // As its successor finds it.
  EXPECT_EQ(to.digest(), from.digest());
}

// A step that is staged at the source adds no row to the version that is sent.
TEST(TableArrival, TakesTheCommittedVersionOfAStagedOne) {
  const Directory folder;
  Tables from = opened(folder.file("from"), some_tables());
  make_steps(from, 3);
  const std::uint64_t digest = from.digest();
  stage_step(from, 4);
  Tables to = opened(folder.file("to"), some_tables());
  Arrival arrival(to, kThisRun, 3);
  ASSERT_TRUE(arrival.copy(folder.file("from")));
  EXPECT_EQ(to.digest(), digest);
  Tables at_another = opened(folder.file("another"), some_tables());
  Arrival refused(at_another, kThisRun, 4);
  EXPECT_NE(
      refused.copy(folder.file("from")).error().what.find("does not stand still at version 4"),
      std::string::npos);
  EXPECT_TRUE(at_another.fresh());
}

TEST(TableArrival, OfNoRowsYet) {
  const Directory folder;
  Tables from = opened(folder.file("from"), some_tables());
  from.begin(0, {});
  Tables to = opened(folder.file("to"), some_tables());
  Arrival arrival(to, kThisRun, 0);
  ASSERT_TRUE(arrival.copy(folder.file("from")));
  EXPECT_EQ(to.version(), 0U);
  make_steps(from, 2);
  make_steps(to, 2);
  EXPECT_EQ(to.digest(), from.digest());
}

TEST(TableArrival, RefusesWhatIsNoSuchFile) {
  const Directory folder;
  Tables from = opened(folder.file("from"), some_tables());
  make_steps(from, 2);
  auto others = some_tables();
  others[0].values = 34;
  Tables of_others = opened(folder.file("others"), others);
  Arrival other_tables(of_others, kThisRun, 2);
  EXPECT_FALSE(other_tables.copy(folder.file("from")));
  Tables of_run = opened(folder.file("run"), some_tables(), kThisRun + 1);
  Arrival other_run(of_run, kThisRun + 1, 2);
  EXPECT_NE(other_run.copy(folder.file("from")).error().what.find("another run"),
            std::string::npos);
  std::ofstream(folder.file("short")) << "no tables";
  Tables to = opened(folder.file("to"), some_tables());
  Arrival cut(to, kThisRun, 2);
  EXPECT_FALSE(cut.copy(folder.file("short")));
  EXPECT_EQ(cut.copy(folder.file("absent")).error().what, "there is no " + folder.file("absent"));
  // What a peer says may be anything.
  std::vector<arena::Range> ranges{{0, 5}};
  EXPECT_FALSE(cut.place(ranges, 0));
  auto sent = departure(folder.file("from"), some_tables(), 2);
  ASSERT_TRUE(sent) << sent.error().what;
  ranges = sent->ranges;
  ranges.back().bytes += 1;
  for (std::size_t i = 0; i + 1 < ranges.size(); ++i) {
    const auto place = cut.place(ranges, i);
    ASSERT_TRUE(place) << place.error().what;
    ASSERT_EQ(::pread(sent->file.file.get(), place->data(), place->size(),
                      static_cast<off_t>(ranges[i].offset)),
              static_cast<ssize_t>(place->size()));
  }
  EXPECT_FALSE(cut.place(ranges, ranges.size() - 1));
  EXPECT_TRUE(to.fresh());
  // Begun anew, it comes.
  EXPECT_TRUE(cut.copy(folder.file("from")));
  EXPECT_EQ(to.digest(), from.digest());
}

}  // namespace
}  // namespace holdfast::table
