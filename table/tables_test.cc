#include "table/tables.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "table/format.h"
#include "table/testing.h"

namespace holdfast::table {
namespace {

using testing::Directory;
using testing::Reference;

constexpr std::uint64_t kRunId = 42;

std::vector<Spec> two_tables() {
  return {{.name = "users",
           .values = 16,
           .optimizer = {.rule = Optimizer::Rule::kAdam},
           .initial = {Initial::Kind::kNormal, 0, 0.1},
           .seed = 1},
          {.name = "items",
           .values = 5,
           .type = Type::kBfloat16,
           .optimizer = {.rule = Optimizer::Rule::kRowAdagrad},
           .initial = {Initial::Kind::kUniform, -1, 1},
           .seed = 1}};
}

Tables open(const std::string& path, std::vector<Spec> specs = two_tables()) {
  Result<Tables> tables = Tables::open(path, std::move(specs), kRunId);
  EXPECT_TRUE(tables) << tables.error().what;
  if (tables->fresh()) tables->begin(0, {});
  return *std::move(tables);
}

void add(Tables& tables, Version n, std::size_t count = 40) {
  for (std::size_t t = 0; t < tables.specs().size(); ++t) {
    const auto push = testing::push_of(n, tables.specs()[t], count);
    ASSERT_TRUE(tables.add(t, push.keys, push.gradients));
  }
}

void stage(Tables& tables, Version n) {
  const std::vector<Arguments> arguments(tables.specs().size(), testing::arguments_of(n));
  const Status staged = tables.stage(n, {1, n, 8 * n}, arguments);
  ASSERT_TRUE(staged) << staged.error().what;
}

void step(Tables& tables, Version n, std::size_t threads = 1, std::size_t count = 40) {
  add(tables, n, count);
  stage(tables, n);
  tables.update(threads);
}

std::vector<Reference> references(const Tables& tables, Version steps, std::size_t count = 40) {
  std::vector<Reference> all;
  for (const Spec& spec : tables.specs()) {
    Reference& one = all.emplace_back(spec);
    for (Version n = 1; n <= steps; ++n) {
      one.step(testing::push_of(n, spec, count), testing::arguments_of(n));
    }
  }
  return all;
}

void expect_same(const Tables& tables, const std::vector<Reference>& all) {
  for (std::size_t t = 0; t < all.size(); ++t) {
    EXPECT_TRUE(testing::same(tables, t, all[t])) << tables.specs()[t].name;
  }
}

TEST(Tables, HoldWhatAPlainLoopComputes) {
  const Directory directory;
  Tables tables = open(directory.file("t"));
  for (Version n = 1; n <= 30; ++n) step(tables, n);
  EXPECT_EQ(tables.version(), 30U);
  EXPECT_EQ(tables.position(), (arena::Position{1, 30, 240}));
  expect_same(tables, references(tables, 30));
}

TEST(Tables, AreFoundByTheNextProcess) {
  const Directory directory;
  for (Version n = 1; n <= 20; ++n) {
    Tables tables = open(directory.file("t"));
    ASSERT_EQ(tables.version(), n - 1);
    step(tables, n);
  }
  const Tables tables = open(directory.file("t"));
  expect_same(tables, references(tables, 20));
  EXPECT_GT(tables.rows(0), 0U);
}

TEST(Tables, GrowThroughManySizesOfTheIndex) {
  const Directory directory;
  const std::vector<Spec> one = {{.name = "many", .values = 1}};
  std::uint64_t key = 0;
  {
    Tables tables = open(directory.file("t"), one);
    // Few new rows in a step, then very many in one, then few.
    for (Version n = 1; n <= 60; ++n) {
      const std::size_t fresh = n == 30 ? 200'000 : 500;
      std::vector<std::uint64_t> keys;
      for (std::size_t i = 0; i < fresh; ++i) keys.push_back(mix(key++));
      keys.push_back(mix(key / 2));
      const std::vector<float> gradients(keys.size(), 1.0F);
      ASSERT_TRUE(tables.add(0, keys, gradients));
      ASSERT_TRUE(tables.stage(n, {}, std::vector{Arguments{.learning_rate = 1}}));
      tables.update(2);
      ASSERT_EQ(tables.rows(0), key);
    }
  }
  const Tables tables = open(directory.file("t"), one);
  std::vector<std::uint64_t> all;
  for (std::uint64_t k = 0; k < key; ++k) all.push_back(mix(k));
  std::vector<float> values(all.size());
  tables.read(0, all, values);
  for (std::uint64_t k = 0; k < key; ++k) ASSERT_LE(values[k], -1) << "row " << k;
  // The rows, their keys, ages and the index; and what is taken ahead, and of former steps'
  // gradients.
  EXPECT_LT(tables.bytes(), key * (4 + 8 + 8 + 10) + 200'501 * 8 + (3 << 20));
}

TEST(Tables, DoNotDependOnThreadsOrOnTheOrderOfRows) {
  const Directory directory;
  std::vector<std::uint64_t> digests;
  for (const std::size_t threads : {1U, 3U, 16U}) {
    Tables tables = open(directory.file(std::to_string(threads)));
    for (Version n = 1; n <= 5; ++n) step(tables, n, threads, 5000);
    digests.push_back(tables.digest());
    expect_same(tables, references(tables, 5, 5000));
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
  // The same keys in another order, without doubles: the rows have other numbers.
  const std::vector<Spec> one = {{.name = "a", .values = 1}};
  std::vector<std::uint64_t> keys = {1, 2, 3};
  std::uint64_t former = 0;
  for (int turn = 0; turn < 2; ++turn) {
    Tables tables = open(directory.file("order" + std::to_string(turn)), one);
    ASSERT_TRUE(tables.add(0, keys, std::vector{1.0F, 1.0F, 1.0F}));
    ASSERT_TRUE(tables.stage(1, {}, std::vector{Arguments{.learning_rate = 1}}));
    tables.update(1);
    EXPECT_TRUE(turn == 0 || tables.digest() == former);
    former = tables.digest();
    std::swap(keys[0], keys[2]);
  }
}

TEST(Tables, KeepNothingOfAStepThatIsGivenUp) {
  const Directory directory;
  Tables tables = open(directory.file("t"));
  step(tables, 1);
  const std::uint64_t before = tables.digest();
  add(tables, 99);
  tables.unstage();  // Before it was staged,
  add(tables, 98);
  stage(tables, 2);
  EXPECT_EQ(tables.staged(), 2U);
  tables.unstage();  // and after.
  EXPECT_EQ(tables.staged(), 1U);
  EXPECT_EQ(tables.digest(), before);
  for (Version n = 2; n <= 6; ++n) step(tables, n);
  expect_same(tables, references(tables, 6));
}

TEST(Tables, GiveAStagedStepUpOrFinishItInTheNextProcess) {
  for (const bool finishes : {false, true}) {
    const Directory directory;
    {
      Tables tables = open(directory.file("t"));
      step(tables, 1);
      add(tables, 2);
      stage(tables, 2);
    }
    Tables tables = open(directory.file("t"));
    EXPECT_EQ(tables.version(), 1U);
    ASSERT_EQ(tables.staged(), 2U);
    finishes ? tables.update(1) : tables.unstage();
    expect_same(tables, references(tables, finishes ? 2 : 1));
  }
}

TEST(Tables, OfOtherSpecificationsAreRefusedByName) {
  const Directory directory;
  { Tables tables = open(directory.file("t")); }
  auto specs = two_tables();
  specs[1].values = 6;
  const auto other = Tables::open(directory.file("t"), specs, kRunId);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().blame, Blame::kUser);
  EXPECT_NE(other.error().what.find("table items has 5 values in a row there and 6 here"),
            std::string::npos)
      << other.error().what;
  const auto next_run = Tables::open(directory.file("t"), specs, kRunId + 1);
  ASSERT_TRUE(next_run) << next_run.error().what;
  EXPECT_TRUE(next_run->fresh());
}

TEST(Tables, WhoseFileIsDamagedAreRefused) {
  const auto damage = [](std::uint64_t offset, auto value) {
    const Directory directory;
    const std::string path = directory.file("t");
    {
      Tables tables = open(path);
      step(tables, 1);
    }
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
    file.close();
    const auto opened = Tables::open(path, two_tables(), kRunId);
    return opened ? std::string() : opened.error().what;
  };
  const auto has = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  EXPECT_TRUE(has(damage(8, kFormat + 1), "of another release"));
  EXPECT_TRUE(has(damage(kTextOffset + 20, 'x'), "does not fit its head"));
  EXPECT_TRUE(has(damage(offsetof(Header, staged), std::uint64_t{77}), "damaged version"));
  EXPECT_TRUE(has(damage(kWordsOffset + 8, std::uint64_t{1} << 60), "number of rows"));
  EXPECT_TRUE(has(damage(kWordsOffset + offsetof(TableWords, index), std::uint64_t{3}), "index"));
  EXPECT_EQ(damage(kSlotsOffset, std::uint64_t{0}), "");
}

TEST(Tables, WhoseUpdateIsDamagedAreRefused) {
  const auto damage = [](std::uint64_t threads, std::uint64_t end) {
    const Directory directory;
    const std::string path = directory.file("t");
    {
      Tables tables = open(path);
      add(tables, 1);
      stage(tables, 1);
    }
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto write = [&](std::uint64_t offset, std::uint64_t value) {
      file.seekp(static_cast<std::streamoff>(offset));
      file.write(reinterpret_cast<const char*>(&value), sizeof value);
    };
    write(offsetof(Header, updating), 1);
    write(offsetof(Header, threads), threads);
    write(kSlotsOffset + offsetof(Slot, end), end);
    file.close();
    const auto opened = Tables::open(path, two_tables(), kRunId);
    return opened ? std::string() : opened.error().what;
  };
  for (const std::uint64_t threads : {0U, 1U, 17U}) {
    EXPECT_NE(damage(threads, 1).find("damaged progress word"), std::string::npos) << threads;
  }
}

// A kill between the row and the word of the progress: too short a time for kills to hit it.
TEST(Tables, UpdateAnEvictedRowOnceThoughTheProgressWasNotTold) {
  const Directory directory;
  const std::string path = directory.file("t");
  const std::vector<Spec> one = {{.name = "one", .values = 2, .initial = {.a = 1}}};
  std::uint64_t digest = 0;
  {
    Tables tables = open(path, one);
    const auto make = [&](Version n, std::vector<std::uint64_t> keys, std::uint64_t evicts) {
      const std::vector<float> gradients(2 * keys.size(), static_cast<float>(n));
      ASSERT_TRUE(tables.add(0, keys, gradients));
      const Arguments arguments{.learning_rate = 0.5, .evicts_before = evicts};
      ASSERT_TRUE(tables.stage(n, {}, std::span(&arguments, 1)));
      tables.update(1);
    };
    make(1, {1, 2}, 0);
    make(2, {2}, 2);
    make(3, {2, 1}, 0);
    digest = tables.digest();
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto write = [&](std::uint64_t offset, std::uint64_t value) {
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  write(offsetof(Header, version), 2);
  write(kSlotsOffset + offsetof(Slot, progress), 2);  // The first row is done; the second is next.
  file.close();
  const Tables tables = open(path, one);
  EXPECT_EQ(tables.version(), 3U);
  EXPECT_EQ(tables.digest(), digest);
}

TEST(Tables, RefuseNumbersThatMakeNoSense) {
  const Directory directory;
  Tables tables = open(directory.file("t"));
  add(tables, 1);
  const auto error_of = [&](Arguments arguments) {
    const Status staged = tables.stage(1, {}, std::vector<Arguments>(2, arguments));
    return staged ? "" : staged.error().what;
  };
  EXPECT_EQ(error_of({.learning_rate = -1}),
            "table users: the learning rate is no number from 0 on");
  EXPECT_EQ(error_of({.learning_rate = 1, .update_count = 0}),
            "table users: Adam's updates are counted from 1");
  EXPECT_EQ(tables.staged(), 0U);
  EXPECT_EQ(error_of({.learning_rate = 1}), "");
}

TEST(Tables, GiveRowsTheValuesThatAreAssigned) {
  const Directory directory;
  const std::vector<Spec> one = {
      {.name = "a",
       .values = 3,
       .optimizer = {.rule = Optimizer::Rule::kFtrl, .initial_accumulator = 0.5},
       .initial = {Initial::Kind::kNormal, 0, 1}}};
  Tables tables = open(directory.file("t"), one);
  const std::vector<std::uint64_t> keys = {7, 8};
  const std::vector<float> gradients = {1, 2, 3, 4, 5, 6};
  const std::vector<float> values = {-0.0F, 1e-30F, 3, 0.1F, -7, 0};
  const auto step = [&](std::span<const float> added, const Arguments& arguments) {
    ASSERT_TRUE(tables.add(0, keys, added));
    const Status staged = tables.stage(tables.version() + 1, {}, {&arguments, 1});
    ASSERT_TRUE(staged) << staged.error().what;
    tables.update(1);
  };
  const auto digest_after = [&](std::span<const float> added, const Arguments& arguments) {
    step(added, arguments);
    return tables.digest();
  };
  // New rows, then the same ones with a state: the state begins anew. No rate is needed.
  const auto first = digest_after(values, {.assigns = 1});
  EXPECT_NE(digest_after(gradients, {.learning_rate = 0.1}), first);
  EXPECT_EQ(digest_after(values, {.assigns = 1}), first);
  std::vector<float> got(values.size());
  tables.read(0, keys, got);
  EXPECT_EQ(std::memcmp(got.data(), values.data(), values.size() * sizeof(float)), 0);
  ASSERT_TRUE(tables.add(0, keys, values));
  const Arguments unknown{.assigns = 2};
  const Status staged = tables.stage(tables.version() + 1, {}, {&unknown, 1});
  ASSERT_FALSE(staged);
  EXPECT_EQ(staged.error().what, "table a: its update is of a kind that is unknown here");
}

TEST(Tables, EvictRowsThatNoStepHasUpdated) {
  const Directory directory;
  const std::string path = directory.file("t");
  const std::vector<Spec> specs = two_tables();
  std::vector<Reference> references(specs.begin(), specs.end());
  Tables tables = open(path);
  const std::uint64_t never = 1'000'000'007;
  std::uint64_t given_back = 0;  // By a process that did not make the step.
  for (Version n = 1; n <= 24; ++n) {
    add(tables, n);
    std::vector<Arguments> arguments(2, testing::arguments_of(n));
    if (n % 4 == 0) arguments[0].evicts_before = n - 2;  // Of the other one nothing is evicted.
    ASSERT_TRUE(tables.stage(n, {1, n, 8 * n}, arguments));
    tables.update(2);
    for (std::size_t t = 0; t < 2; ++t) {
      references[t].step(testing::push_of(n, specs[t], 40), arguments[t]);
      ASSERT_TRUE(testing::same(tables, t, references[t])) << n;
    }
    const std::uint64_t digest = tables.digest();
    const std::uint64_t before = tables.rows(0);
    if (n % 8 == 0) {  // Otherwise evicted rows wait for the next time.
      const Status shrunk = tables.shrink();
      ASSERT_TRUE(shrunk) << shrunk.error().what;
      EXPECT_LT(tables.rows(0), before);
      EXPECT_EQ(tables.rows(0), references[0].keys().size());
    } else if (n % 4 == 0) {  // The next process finds what is to be given back.
      EXPECT_GT(tables.rows(0), references[0].keys().size());
      tables = open(path);
    } else {
      ASSERT_TRUE(tables.shrink());
      if (n % 8 != 5) {
        EXPECT_EQ(tables.rows(0), before);
      } else {
        given_back += before - tables.rows(0);
      }
    }
    EXPECT_EQ(tables.digest(), digest);
    for (std::size_t t = 0; t < 2; ++t) ASSERT_TRUE(testing::same(tables, t, references[t])) << n;
    EXPECT_EQ(tables.position(), (arena::Position{1, n, 8 * n}));
    std::vector<float> value(16);
    tables.read(0, std::span(&never, 1), value);
    EXPECT_EQ(value, references[0].values(never));
  }
  EXPECT_GT(given_back, 0U);
}

TEST(Tables, MakeMissingFoldersAndReplaceFilesOfOtherRuns) {
  const Directory directory;
  const std::string path = directory.file("a/b/t");
  {
    Tables tables = open(path);
    for (Version n = 1; n <= 3; ++n) step(tables, n, 1, 3000);
    expect_same(tables, references(tables, 3, 3000));
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offsetof(Header, version));
  file.write("\1\2\3\4\5\6\7\7", 8);
  file.close();
  EXPECT_FALSE(Tables::open(path, two_tables(), kRunId));
  const auto next = Tables::open(path, two_tables(), kRunId + 1);
  ASSERT_TRUE(next) << next.error().what;
  EXPECT_TRUE(next->fresh());
}

TEST(Tables, DoNotDependOnTheCallersFloatMode) {
  const Directory directory;
  const std::vector<Spec> one = {
      {.name = "a",
       .values = 1,
       .optimizer = {.rule = Optimizer::Rule::kMomentum, .momentum = 0.9}}};
  std::vector<std::uint64_t> digests;
  for (const bool rounds_up : {false, true}) {
    Tables tables = open(directory.file(rounds_up ? "up" : "near"), one);
    const int before = std::fegetround();
    ASSERT_TRUE(!rounds_up || std::fesetround(FE_UPWARD) == 0);
    for (Version n = 1; n <= 3; ++n) {
      ASSERT_TRUE(tables.add(0, std::vector<std::uint64_t>{1, 1}, std::vector{0.1F, 0.3F}));
      ASSERT_TRUE(tables.stage(n, {}, std::vector{Arguments{.learning_rate = 0.1}}));
      tables.update(1);
    }
    std::fesetround(before);
    digests.push_back(tables.digest());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// Where new rows find no memory, the step is refused by name, before anything of it counts.
TEST(Tables, WithoutRoomRefuseTheStepAndGoOn) {
  const Directory directory;
  const std::vector<Spec> one = {{.name = "wide", .values = 1024}};
  const auto failed = os::on_a_tmpfs(directory.path(), "size=32m", [&] {
    Tables tables = open(directory.file("t"), one);
    const std::vector<float> gradients(1024, 1.0F);
    const auto made = [&](Version n, std::uint64_t from, std::uint64_t keys) {
      Status last;
      for (std::uint64_t key = from; last && key < from + keys; ++key) {
        last = tables.add(0, std::vector{key}, gradients);
      }
      if (last) last = tables.stage(n, {}, std::vector{Arguments{.learning_rate = 1}});
      last ? tables.update(1) : tables.unstage();
      return last;
    };
    if (!made(1, 0, 500)) return 1;
    const std::uint64_t before = tables.digest();
    for (const std::uint64_t keys : {5000U, 20'000U}) {  // In the rows, and in their gradients.
      const Status too_many = made(2, 500, keys);
      if (too_many || !too_many.error().what.starts_with("No room in ")) return 2;
      if (too_many.error().what.find(" for table wide: ") == std::string::npos) return 3;
      if (tables.version() != 1 || tables.digest() != before) return 4;
    }
    // A process dies with a step that it has gathered: its memory is not lost.
    if (!tables.add(0, std::vector<std::uint64_t>{7}, gradients)) return 6;
    tables = open(directory.file("t"), one);
    tables.unstage();
    if (tables.bytes() > (std::uint64_t{4} << 20)) return 7;
    return made(2, 0, 2000) && tables.rows(0) == 2000 ? 0 : 5;
  });
  if (!failed) GTEST_SKIP() << "this user may not mount a tmpfs";
  EXPECT_EQ(*failed, 0);
}

}  // namespace
}  // namespace holdfast::table
