#include "runtime/agent/rehearsal_folders.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "core/agent/rehearsals.h"
#include "os/files.h"

namespace holdfast::runtime {
namespace {

namespace fs = std::filesystem;

class RehearsalFoldersTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(job_.data()), nullptr); }
  void TearDown() override { fs::remove_all(job_); }
  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(job_ + '/' + name).parent_path());
    std::ofstream(job_ + '/' + name) << bytes;
  }
  std::string job_ = fs::temp_directory_path() / "rehearsal-folders-XXXXXX";
};

TEST_F(RehearsalFoldersTest, AreMadeReadAndRemoved) {
  RehearsalFolders folders(job_, {"1"});
  for (const std::string verdict : {"equal\n7\n\n", "differs\n8\nw\n"}) {
    ASSERT_TRUE(folders.make("1", false));
    EXPECT_TRUE(fs::is_empty(job_ + "/rehearsal-1"));
    write("rehearsal-1/verdict", verdict);
    write("rehearsal-1/sub/rank-1.arena", "bytes");
    EXPECT_EQ(folders.take("1"), verdict);
    EXPECT_FALSE(fs::exists(job_ + "/rehearsal-1"));
  }
}

TEST_F(RehearsalFoldersTest, WhatIsNoVerdictsFileIsNotRead) {
  RehearsalFolders folders(job_, {});
  ASSERT_TRUE(folders.make("1", false));
  EXPECT_EQ(folders.take("1"), std::nullopt);
  EXPECT_EQ(folders.take("2"), std::nullopt);
  ASSERT_TRUE(folders.make("1", false));
  ASSERT_EQ(::mkfifo((job_ + "/rehearsal-1/verdict").c_str(), 0600), 0);
  EXPECT_EQ(folders.take("1"), std::nullopt);
  write("secret", "equal\n7\n\n");
  ASSERT_TRUE(folders.make("1", false));
  fs::create_symlink(job_ + "/secret", job_ + "/rehearsal-1/verdict");
  EXPECT_EQ(folders.take("1"), std::nullopt);
  EXPECT_TRUE(fs::exists(job_ + "/secret"));
  ASSERT_TRUE(folders.make("1", false));
  write("rehearsal-1/verdict", std::string(1'000'000, 'x'));
  EXPECT_EQ(folders.take("1")->size(), agent::kMostVerdictBytes + 1);
}

TEST_F(RehearsalFoldersTest, OfAFormerAgentGo) {
  for (const char* name : {"rehearsal-1/a", "rehearsal-1.gone-5-0/a", "rehearsal-12/a"}) {
    write(name, "");
  }
  { const RehearsalFolders folders(job_, {"1", "2"}); }
  EXPECT_EQ(os::names_in(job_), std::vector<std::string>{"rehearsal-12"});
}

}  // namespace
}  // namespace holdfast::runtime
