// `holdfast snapshot`: lists snapshots and checks them, and names what is wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "os/spawn.h"
#include "os/testing.h"
#include "snapshot/testing.h"

namespace holdfast::apps {
namespace {

namespace fs = std::filesystem;
using snapshot::testing::has;
using snapshot::testing::snap;
using snapshot::testing::write_text;

class SnapshotCommand : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(snap(dir, "a1", 7));
    ASSERT_TRUE(snap(dir, "a2", 9, 1));
  }

  // Runs `holdfast snapshot`; returns the exit code. What it prints is in `said`.
  int run(const std::vector<std::string>& words, const std::string& in = "") {
    os::SpawnOptions options;
    options.argv = {HOLDFAST, "snapshot"};
    options.argv.insert(options.argv.end(), words.begin(), words.end());
    options.output = folder / "output";
    fs::remove(options.output);
    const fs::path before = fs::current_path();
    if (!in.empty()) fs::current_path(in);
    const auto child = os::spawn(options);
    fs::current_path(before);
    EXPECT_TRUE(child) << child.error().what;
    const auto exit = os::wait_for(child->pidfd.get());
    said = *os::read_file(options.output);
    return exit->shell_code();
  }
  void damage() {
    std::string text = *os::read_file(shard);
    text.back() = '!';
    write_text(shard, text);
  }

  os::TemporaryFolder folder{"/dev/shm"};
  const std::string dir = folder / "snapshots";
  const std::string shard = snapshot::path_of(dir, "a1", 1);
  std::string said;
};

TEST_F(SnapshotCommand, ListsWhatIsThere) {
  fs::create_directory(cat(dir, "/b7"));
  const auto bytes = [this](const char* name, Rank ranks) {
    std::uintmax_t all = 0;
    for (Rank rank = 0; rank < ranks; ++rank) {
      all += fs::file_size(snapshot::path_of(dir, name, rank));
    }
    return all;
  };
  ASSERT_EQ(run({"ls", dir}), 0) << said;
  EXPECT_TRUE(has(said, "2023-11-14 22:13:20             9      1")) << said;
  EXPECT_TRUE(
      has(said, cat(bytes("a1", 2),
                    "  0.1.0    digits            a1                        python train.py\n")))
      << said;
  EXPECT_LT(said.find("  a2  "), said.find("  a1  ")) << said;
  EXPECT_TRUE(has(said, cat(dir, "/b7 was not finished, or is being written: it is no snapshot\n")))
      << said;
  EXPECT_FALSE(has(said, "digests")) << said;
  ASSERT_EQ(run({"ls", dir, "--verify"}), 0) << said;
  EXPECT_TRUE(has(said, "All bytes were read, and their digests are right.\n")) << said;
  ASSERT_EQ(run({"ls", "--json", dir}), 0) << said;
  const auto json = nlohmann::json::parse(said);
  EXPECT_EQ(json["folder"], dir);
  EXPECT_EQ(json["unfinished"], std::vector<std::string>{"b7"});
  EXPECT_TRUE(json["problems"].empty());
  ASSERT_EQ(json["snapshots"].size(), 2U);
  const auto& one = json["snapshots"][1];
  EXPECT_EQ(one["name"], "a1");
  EXPECT_EQ(one["job"], "digits");
  EXPECT_EQ(one["run_id"], "fedcba9876543210");
  EXPECT_EQ(one["version"], 7);
  EXPECT_EQ(one["world_size"], 2);
  EXPECT_EQ(one["servers"], 0);
  EXPECT_EQ(one["program"], "python train.py");
  EXPECT_EQ(one["release"], "0.1.0");
  EXPECT_EQ(one["unix_ms"], 1'700'000'000'007);
  EXPECT_EQ(one["bytes"], bytes("a1", 2));
  EXPECT_EQ(one["damaged"], false);
}

TEST_F(SnapshotCommand, VerifiesOneOrAll) {
  const std::string first = cat(dir, "/a1 is right: step 7 of 2 ranks, ");
  const std::string second = cat(dir, "/a2 is right: step 9 of 1 rank, ");
  ASSERT_EQ(run({"verify", dir}), 0) << said;
  EXPECT_TRUE(has(said, first) && has(said, second)) << said;
  for (const char* end : {"/a1", "/a1/"}) {
    ASSERT_EQ(run({"verify", dir + end}), 0) << said;
    EXPECT_TRUE(has(said, first) && !has(said, second)) << said;
  }
  ASSERT_EQ(run({"verify", "a1"}, dir), 0) << said;
  EXPECT_TRUE(has(said, "./a1 is right")) << said;
  ASSERT_EQ(run({"verify", "."}, dir), 0) << said;
}

TEST_F(SnapshotCommand, NamesWhatIsDamaged) {
  damage();
  const std::string why = cat("holdfast snapshot: ", shard, " is damaged, or no shard of a ",
                              "snapshot: its tensor `moments` is not as it was written\n");
  EXPECT_EQ(run({"ls", dir}), 0) << said;
  EXPECT_EQ(run({"ls", dir, "--verify"}), 1);
  EXPECT_TRUE(has(said, why) && has(said, "  a1  (damaged)  ")) << said;
  EXPECT_FALSE(has(said, "are right")) << said;
  EXPECT_EQ(run({"verify", dir}), 1);
  EXPECT_TRUE(has(said, why) && has(said, "/a2 is right")) << said;
  EXPECT_EQ(run({"verify", cat(dir, "/a1")}), 1);
  EXPECT_EQ(said, why);
  fs::resize_file(shard, 5);
  const std::string short_one =
      cat("holdfast snapshot: ", shard, " can not be used: it has 5 bytes");
  EXPECT_EQ(run({"ls", dir}), 1);
  EXPECT_TRUE(has(said, short_one) && has(said, "  a2  ") && !has(said, "  a1  ")) << said;
  EXPECT_EQ(run({"ls", dir, "--json"}), 1);
  EXPECT_TRUE(has(said, short_one)) << said;
  EXPECT_EQ(run({"verify", dir}), 1);
  EXPECT_TRUE(has(said, short_one) && has(said, "/a2 is right")) << said;
}

TEST_F(SnapshotCommand, SaysWhatIsNotThere) {
  EXPECT_EQ(run({"ls", folder / "none"}), 1);
  EXPECT_EQ(said, cat("holdfast snapshot: there is no folder ", folder / "none", "\n"));
  EXPECT_EQ(run({"ls", folder.path()}), 0);
  EXPECT_EQ(said, cat(folder.path(), ": no snapshot\n"));
  EXPECT_EQ(run({"verify", folder.path()}), 1);
  EXPECT_EQ(said, cat("holdfast snapshot: there is no snapshot in ", folder.path(), "\n"));
  EXPECT_EQ(run({"verify", cat(dir, "/a3")}), 1);
  EXPECT_TRUE(has(said, cat("there is no snapshot: cannot open ", dir, "/a3/manifest.json")))
      << said;
  EXPECT_EQ(run({"verify", ""}), 1);
  write_text(folder / "bad\x1b[31m", "");
  EXPECT_EQ(run({"ls", folder / "bad\x1b[31m"}), 1);
  EXPECT_TRUE(has(said, "bad?[31m: Not a directory")) << said;
}

TEST_F(SnapshotCommand, SaysHowItIsCalled) {
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(
      said,
      "holdfast snapshot: say what to do: ls DIR, verify DIR or now; diff and export come with "
      "the Python package (--help)\n");
  EXPECT_EQ(run({"look", dir}), 2);
  EXPECT_EQ(run({"ls"}), 2);
  EXPECT_TRUE(has(said, "DIR is required")) << said;
  EXPECT_EQ(run({"verify"}), 2);
  EXPECT_TRUE(has(said, "DIR[/NAME] is required")) << said;
  EXPECT_EQ(run({"--help"}), 0);
  for (const char* word : {"ls", "verify", "Exit codes"}) EXPECT_TRUE(has(said, word)) << said;
}

}  // namespace
}  // namespace holdfast::apps
