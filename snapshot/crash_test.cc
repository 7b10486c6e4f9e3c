// Kills a process before each of its system calls, and cuts the power there: what is found then is
// whole, or not there.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "os/fd.h"
#include "snapshot/power_cut.h"
#include "snapshot/testing.h"

namespace holdfast::snapshot {
namespace {

using testing::Disk;
using testing::manifest_of;
using testing::snap;
using Leaves = Disk::Leaves;

constexpr const char* kOld = "01";
constexpr const char* kNew = "02";

bool is_whole(const std::string& dir, const std::string& name) {
  const auto listing = find(dir);
  EXPECT_TRUE(listing) << listing.error().what;
  return std::any_of(listing->whole.begin(), listing->whole.end(),
                     [&name](const Found& one) { return one.name == name; });
}

// All that is found is right, and what is half can be removed. `is_done`: nothing is half.
void expect_sound(const std::string& dir, bool is_done) {
  const auto listing = find(dir);
  ASSERT_TRUE(listing) << listing.error().what;
  EXPECT_TRUE(listing->half.empty() || !is_done);
  for (const Found& found : listing->whole) {
    const Status right = verify(dir, found.name);
    EXPECT_TRUE(right) << right.error().what;
  }
  for (const std::string& why : listing->unusable) ADD_FAILURE() << why;
  for (const std::string& half : listing->half) EXPECT_TRUE(remove(dir, half));
  EXPECT_TRUE(find(dir)->half.empty());
  EXPECT_EQ(find(dir)->whole.size(), os::names_in(dir).size());
}

class Crash : public ::testing::Test {
 protected:
  // Does `work` on what `prepare` has made, kills it before each of its calls, and has `check` look
  // at what is left: by the kill alone, and by power cuts of all kinds. `is_done`: it has ended.
  using Check = std::function<void(const std::string& dir, bool is_done)>;
  void at_each_call(const std::function<void(const std::string& dir)>& prepare,
                    const std::function<int(const std::string& dir)>& work, const Check& check) {
    Prng random(17);
    bool is_done = false;
    int calls = 0;
    for (; !is_done; ++calls) {
      const os::TemporaryFolder home("/dev/shm");
      const std::string dir = home / "dir";
      prepare(dir);
      Disk disk(home.path());
      const auto code = disk.run([&] { return work(dir); }, calls);
      is_done = code.has_value();
      ASSERT_EQ(code.value_or(0), 0);
      for (int i = 0; i < 6; ++i) {
        const Leaves leaves = i == 0   ? Leaves::kNothing
                              : i == 1 ? Leaves::kNames
                                       : Leaves::kThisAndThat;
        const os::TemporaryFolder after("/dev/shm");
        disk.cut(after / "home", leaves, random);
        SCOPED_TRACE(cat("power cut ", i, " before call ", calls));
        check(after / "home/dir", is_done);
      }
      SCOPED_TRACE(cat("killed before call ", calls));
      check(dir, is_done);
      ASSERT_EQ(work(dir), 0) << "it can be done again";
      check(dir, true);
      ASSERT_LT(calls, 1000);
    }
    std::printf("%d instants\n", calls);
    EXPECT_GT(calls, 20);
  }

  const os::TemporaryFolder memory{"/dev/shm"};
};

TEST_F(Crash, OfASnapshotLeavesItWholeOrNot) {
  for (Rank rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(testing::write_small(memory / cat("shard-", rank), rank, "new"));
  }
  const auto work = [&](const std::string& dir) {
    std::vector<File> files;
    for (Rank rank = 0; rank < 2; ++rank) {
      const auto file = store_shard(memory / cat("shard-", rank), dir, kNew, rank);
      if (!file) return 1;
      files.push_back(*file);
    }
    return name_snapshot(dir, kNew, manifest_of(2, files)) ? 0 : 2;
  };
  const auto old = [](const std::string& dir) { ASSERT_TRUE(snap(dir, kOld, 1)); };
  at_each_call(old, work, [](const std::string& dir, bool is_done) {
    expect_sound(dir, is_done);
    EXPECT_TRUE(is_whole(dir, kOld));
    EXPECT_TRUE(is_whole(dir, kNew) || !is_done);
  });
}

TEST_F(Crash, OfTheFirstSnapshotLeavesItWholeOrNot) {
  ASSERT_TRUE(testing::write_small(memory / "shard", 0, "new"));
  const auto work = [&](const std::string& dir) {
    const std::string deep = dir + "/and/deep";
    const auto file = store_shard(memory / "shard", deep, kNew, 0);
    return file && name_snapshot(deep, kNew, manifest_of(2, {*file})) ? 0 : 1;
  };
  at_each_call([](const std::string&) {}, work,
               [](const std::string& dir, bool is_done) {
                 expect_sound(dir + "/and/deep", is_done);
                 EXPECT_TRUE(is_whole(dir + "/and/deep", kNew) || !is_done);
               });
}

TEST_F(Crash, OfARemovalLeavesItWholeOrNot) {
  const auto prepare = [](const std::string& dir) {
    ASSERT_TRUE(snap(dir, kOld, 1));
    ASSERT_TRUE(snap(dir, kNew, 2));
  };
  const auto work = [](const std::string& dir) { return remove(dir, kOld) ? 0 : 1; };
  at_each_call(prepare, work, [](const std::string& dir, bool is_done) {
    expect_sound(dir, is_done);
    EXPECT_TRUE(is_whole(dir, kNew));
    EXPECT_FALSE(is_whole(dir, kOld) && is_done);
  });
}

// What is not synced is lost, or this test could not fail.
TEST(PowerCut, LosesWhatWasNotSynced) {
  const os::TemporaryFolder home("/dev/shm");
  testing::write_text(home / "kept", "kept");
  const auto write = [&home](const std::string& name, bool syncs) {
    const os::Fd file(::open((home / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!os::write_all(file.get(), name)) return false;
    return !syncs || ::fsync(file.get()) == 0;
  };
  Disk disk(home.path());
  const auto code = disk.run(
      [&] {
        const os::Fd folder(::open(home.path().c_str(), O_RDONLY | O_CLOEXEC));
        if (!write("named", false) || !write("whole", true)) return 1;
        if (::fsync(folder.get()) != 0 || !write("nameless", true)) return 2;
        return ::unlink((home / "kept").c_str());
      },
      1000);
  ASSERT_EQ(code, 0);
  Prng random(1);
  const auto left = [&](Leaves leaves) {
    const os::TemporaryFolder after("/dev/shm");
    disk.cut(after / "home", leaves, random);
    std::string all;
    for (const std::string& name : os::names_in(after / "home")) {
      all += cat(name, ":", *os::read_file(after / cat("home/", name)), " ");
    }
    return all;
  };
  EXPECT_EQ(left(Leaves::kNothing), "kept:kept named: whole:whole ");
  EXPECT_EQ(left(Leaves::kNames), "named: nameless:nameless whole:whole ");
  std::set<std::string> seen;
  for (int i = 0; i < 200; ++i) seen.insert(left(Leaves::kThisAndThat));
  EXPECT_EQ(seen.size(), 2U * 2U * 2U) << "with or without two names, and the bytes of one file";
}

}  // namespace
}  // namespace holdfast::snapshot
