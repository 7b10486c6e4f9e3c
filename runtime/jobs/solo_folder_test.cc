// SoloFolder: the folder of a dead process is removed, and that of a living one is not.
#include "runtime/jobs/solo_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

namespace fs = std::filesystem;

struct Child {
  pid_t pid = 0;
  std::string folder;
};

// A child that makes its folder, with a file in it, and waits to be killed.
Child child(const char* name) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  Child made{.pid = ::fork(), .folder = {}};
  if (made.pid == 0) {
    SoloFolder folder;
    const auto path = folder.make(cat("solo-", name, '-', ::getpid()));
    if (!path) ::_exit(1);
    std::ofstream(*path + "/state") << "bytes\n";
    (void)!::write(ends[1], path->data(), path->size());
    ::close(ends[1]);
    ::close(ends[0]);
    while (true) ::pause();
  }
  ::close(ends[1]);
  std::array<char, 256> text{};
  for (ssize_t got = 0; (got = ::read(ends[0], text.data(), text.size())) > 0;) {
    made.folder.append(text.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  return made;
}

void end(const Child& child) {
  ::kill(child.pid, SIGKILL);
  ::waitpid(child.pid, nullptr, 0);
}

TEST(SoloFolder, GoesWithItsProcess) {
  std::string path;
  {
    SoloFolder folder;
    const auto made = folder.make(cat("solo-test-", ::getpid()));
    ASSERT_TRUE(made) << made.error().what;
    path = *made;
    EXPECT_TRUE(fs::exists(path));
    if (::fork() == 0) {
      folder.remove();
      ::_exit(0);
    }
    ::wait(nullptr);
    EXPECT_TRUE(fs::exists(path)) << "a forked child has taken its parent's";
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(SoloFolder, OfADeadProcessIsRemovedByTheNext) {
  const Child living = child("living");
  const Child dead = child("dead");
  end(dead);
  ASSERT_TRUE(fs::exists(dead.folder + "/state"));
  SoloFolder folder;
  const auto made = folder.make(cat("solo-test-", ::getpid()));
  ASSERT_TRUE(made) << made.error().what;
  EXPECT_FALSE(fs::exists(dead.folder));
  EXPECT_TRUE(fs::exists(living.folder + "/state"));
  EXPECT_TRUE(fs::exists(*made));
  end(living);
  folder.remove();
  EXPECT_TRUE(folder.make(cat("solo-test-", ::getpid())));
  EXPECT_FALSE(fs::exists(living.folder));
}

}  // namespace
}  // namespace holdfast::runtime
