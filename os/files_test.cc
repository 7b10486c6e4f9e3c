#include "os/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "base/text.h"
#include "os/host.h"
#include "os/testing.h"

namespace holdfast::os {
namespace {

namespace fs = std::filesystem;

TEST(Files, MakesFoldersWithTheMode) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(0);
  ASSERT_TRUE(make_directories(folder / "a/b//c/", 0710));
  ::umask(before);
  struct stat about {};
  ASSERT_EQ(::stat((folder / "a/b/c").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0710U);
  EXPECT_TRUE(make_directories(folder / "a/b"));
  std::ofstream(folder / "file") << "x";
  const auto refused = make_directories(folder / "file/d");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find(folder / "file"), std::string::npos);
}

// Like on a read-only file system: a folder that is missing can not be made.
TEST(Files, SaysWhyAFolderCanNotBeMadeAndNotThatItIsNotThere) {
  const TemporaryFolder folder;
  fs::create_symlink(folder / "nowhere", folder / "link");
  const auto refused = make_directories(folder / "link");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().what, cat("cannot make the folder ", folder / "link", ": File exists"));
}

TEST(Files, ReplacesAFileWholeAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  const std::string bytes(100'000, '\0');
  ASSERT_TRUE(write_file_atomically(folder / "f", "old", 0644));
  ASSERT_TRUE(write_file_atomically(folder / "f", bytes));
  EXPECT_EQ(*read_file(folder / "f"), bytes);
  struct stat about {};
  ASSERT_EQ(::stat((folder / "f").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0600U);
  ASSERT_TRUE(make_directories(folder / "d"));
  const auto failed = write_file_atomically(folder / "d", "x");
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().what.find(folder / "d"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
}

TEST(Files, NamesTheFileThatCanNotBeRead) {
  const auto bytes = read_file("/no/such/file");
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().what, "cannot open /no/such/file: No such file or directory");
}

TEST(Files, GivesTheLastLines) {
  const TemporaryFolder folder;
  const auto tail_of = [&](const std::string& text, std::size_t lines) {
    std::ofstream(folder / "f") << text;
    return tail(folder / "f", lines);
  };
  EXPECT_EQ(tail_of("a\nb\nc\n", 2), "b\nc\n");
  EXPECT_EQ(tail_of("a\nb\nc", 2), "b\nc");
  EXPECT_EQ(tail_of("a\nb\nc", 9), "a\nb\nc");
  EXPECT_EQ(tail_of("a\n\n\n", 2), "\n\n");
  EXPECT_EQ(tail_of("\n", 1), "\n");
  EXPECT_EQ(tail_of("a\n", 0), "");
  EXPECT_EQ(tail_of("", 3), "");
  EXPECT_EQ(tail_of(std::string(200'000, 'x') + "\nend", 2).size(), 65536U);
  EXPECT_EQ(tail("/no/such/file", 3), "");
}

TEST(Files, GivesAJobAFolderOfItsOwn) {
  const std::string job = cat("io-test-", ::getpid());
  const auto path = runtime_directory(job);
  ASSERT_TRUE(path) << path.error().what;
  EXPECT_TRUE(path->ends_with(cat("/holdfast-", ::geteuid(), '/', job))) << *path;
  EXPECT_EQ(*runtime_directory(job), *path);
  ASSERT_EQ(::chmod(path->c_str(), 0777), 0);
  EXPECT_FALSE(runtime_directory(job)) << "others could have put something there";
  ASSERT_EQ(::rmdir(path->c_str()), 0);
  for (const char* bad : {"", ".", "..", ".hidden", "a/b", "a b", "ü"}) {
    EXPECT_FALSE(runtime_directory(bad)) << bad;
  }
  EXPECT_FALSE(runtime_directory(std::string(101, 'x')));
}

// The user's last other job ends just now, and with it the folder of all jobs goes
// (runtime/job_files.h).
TEST(Files, GivesAJobAFolderWhileAnotherTakesTheUsersAway) {
  const auto failed = on_a_tmpfs("/dev/shm", "", [] {
    const std::string mine = cat("/dev/shm/holdfast-", ::geteuid());
    std::atomic<bool> over = false;
    std::thread other([&] {
      // A thousand jobs that end each second: between two ends there is time for a whole try, also
      // on a busy core.
      for (const timespec pause{0, 1'000'000}; !over; ::nanosleep(&pause, nullptr)) {
        ::rmdir(mine.c_str());
      }
    });
    int lost = 0;
    for (int i = 0; i < 20'000; ++i) {
      const auto path = runtime_directory("job");
      if (!path || ::rmdir(path->c_str()) != 0) ++lost;
    }
    over = true;
    other.join();
    return lost == 0 ? 0 : 1;
  });
  if (!failed) GTEST_SKIP() << "this user may not mount a /dev/shm";
  EXPECT_EQ(*failed, 0);
}

TEST(Host, TellsItsOwnAddressesFromOthers) {
  for (const char* own : {"127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "localhost", ""}) {
    EXPECT_FALSE(is_address_elsewhere(own)) << own;
  }
  // Addresses for documents, which no host has.
  for (const char* other : {"192.0.2.1", "2001:db8::1"}) {
    EXPECT_TRUE(is_address_elsewhere(other)) << other;
  }
}

TEST(Files, KnowsThisHostsName) {
  EXPECT_NE(host_name(), "");
}

}  // namespace
}  // namespace holdfast::os
