// `holdfast clean` and `holdfast status` can not be turned against their user by links or files in
// the place of folders. As root, the tests run the commands as a user that has no jobs; else as the
// user who runs the tests.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"
#include "os/host.h"
#include "os/testing.h"

namespace holdfast::apps {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kStranger = 65534;
constexpr const char* kAlone = " and is left alone; only that user or root can remove it";

struct Said {
  int code = 0;
  std::string text;
};

class Cleaned : public testing::Test {
 protected:
  Cleaned() {
    EXPECT_EQ(::chown(home_.path().c_str(), user_, user_), 0);
    EXPECT_EQ(by_user([&] {
                fs::create_directory(precious_);
                fs::permissions(precious_, fs::perms::owner_all);
                std::ofstream(keep_) << "kept";
                // Old enough that `clean` does not take it for a job that begins just now.
                fs::last_write_time(precious_,
                                    fs::file_time_type::clock::now() - std::chrono::hours(1));
                return 0;
              }),
              0);
  }
  ~Cleaned() override {
    EXPECT_TRUE(fs::exists(keep_)) << "it lies outside";
    fs::remove_all(fs::symlink_status(mine_).type() == fs::file_type::symlink ? mine_ : job_);
    if (fs::is_directory(fs::symlink_status(mine_))) ::rmdir(mine_.c_str());
  }

  template <class Body>
  int by_user(const Body& body) const {
    return os::as_user(user_, body);
  }
  // Runs a command as the user; returns its output and exit code.
  template <class Command>
  Said ask(const Command& command) const {
    const std::string output = home_ / "output";
    const int code = by_user([&] {
      const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      if (::dup2(file, 1) < 0 || ::dup2(file, 2) < 0) return 255;
      const int answered = command();
      std::fflush(stdout);
      return answered;
    });
    return {code, os::end_of(output, 0)};
  }
  [[nodiscard]] Said clean() const {
    return ask([] { return apps::clean(false); });
  }
  [[nodiscard]] Said status() const {
    return ask([] { return apps::status("", false); });
  }

  const uid_t user_ =
      ::geteuid() == 0 ? 20000 + static_cast<uid_t>(::getpid()) % 40000 : ::geteuid();
  // The user's folder for jobs, at a place that is free also if the user has jobs.
  const std::string first_ = cat("/dev/shm/holdfast-", user_);
  const std::string mine_ = fs::exists(first_) ? cat("/tmp/holdfast-", user_) : first_;
  const std::string job_ = mine_ + "/clean-test";
  const os::TemporaryFolder home_{os::folder_of(mine_)};  // On the same file system: hard links.
  const std::string precious_ = home_ / "precious";
  const std::string keep_ = precious_ + "/keep";
};

// A link is in the place of the user's folder; as root, another user's. It leads to a folder whose
// folders `clean` would remove.
TEST_F(Cleaned, FollowsNoLinkInThePlaceOfTheUsersFolder) {
  const bool root = ::geteuid() == 0;
  ASSERT_EQ(os::as_user(root ? kStranger : user_,
                        [&] { return ::symlink(home_.path().c_str(), mine_.c_str()); }),
            0);
  const std::string why =
      root ? cat("holdfast: ", mine_, " belongs to user 65534", kAlone, '\n')
           : cat("holdfast: ", mine_, " is a link and is left alone; remove it\n");
  const Said cleaned = clean();
  EXPECT_EQ(cleaned.code, 1);
  EXPECT_TRUE(has(cleaned.text, why)) << cleaned.text;
  EXPECT_FALSE(has(cleaned.text, "nothing to clean")) << cleaned.text;
  const Said told = status();
  EXPECT_TRUE(has(told.text, why.substr(why.find('/')))) << told.text;
  const Said refused = ask([] {
    const auto made = os::runtime_directory("clean-test");
    if (!made) std::puts(made.error().what.c_str());
    return made ? 1 : 0;
  });
  if (mine_ == first_) {
    EXPECT_EQ(refused.code, 0);
    EXPECT_TRUE(has(refused.text, " is left alone")) << refused.text;
  }
  EXPECT_TRUE(fs::is_symlink(mine_));
}

TEST_F(Cleaned, LooksIntoNoFolderOfAnother) {
  if (::geteuid() != 0) {  // Not root: a link of the user's own leads to a folder of root.
    ASSERT_EQ(::symlink("/usr", mine_.c_str()), 0);
    EXPECT_EQ(clean().code, 1);
    return;
  }
  ASSERT_EQ(os::as_user(kStranger,
                        [&] {
                          ::umask(0);
                          return ::mkdir(mine_.c_str(), 0777) == 0 ? ::mkdir(job_.c_str(), 0777)
                                                                   : 1;
                        }),
            0);
  const Said cleaned = clean();
  EXPECT_EQ(cleaned.code, 1);
  EXPECT_EQ(cleaned.text, cat("holdfast: ", mine_, " belongs to user 65534", kAlone, '\n'));
  EXPECT_TRUE(fs::is_directory(job_));
}

TEST_F(Cleaned, LeavesALinkInThePlaceOfAJobsFolderAlone) {
  ASSERT_EQ(by_user([&] {
              return ::mkdir(mine_.c_str(), 0700) == 0 ? ::symlink(precious_.c_str(), job_.c_str())
                                                       : 1;
            }),
            0);
  const Said cleaned = clean();
  EXPECT_EQ(cleaned.code, 1);
  EXPECT_TRUE(has(cleaned.text, cat(job_, " is a link and is left alone; remove it\n")))
      << cleaned.text;
  EXPECT_TRUE(fs::is_symlink(job_));
}

// Links in a dead job's folder are removed with it, and nothing that they lead to.
TEST_F(Cleaned, RemovesADeadJobsFolderAndNothingThatItNames) {
  ASSERT_EQ(by_user([&] {
              const auto name = [&](const char* last) { return cat(job_, '/', last); };
              if (::mkdir(mine_.c_str(), 0700) != 0 || ::mkdir(job_.c_str(), 0700) != 0) return 1;
              fs::create_symlink(keep_, name("scheduler.json"));
              fs::create_hard_link(keep_, name("agent-1.json"));
              fs::create_directory(name("agent-2.json"));
              fs::create_symlink(precious_, name("agent-2.json/link"));
              fs::create_symlink(precious_, name("sub-x"));
              return ::mkfifo(name("agent-3.json").c_str(), 0600);
            }),
            0);
  const Said cleaned = clean();
  EXPECT_EQ(cleaned.code, 0) << cleaned.text;
  EXPECT_TRUE(has(cleaned.text, cat("removed ", job_, '\n'))) << cleaned.text;
  EXPECT_FALSE(fs::exists(mine_));
  std::string word;
  std::ifstream(keep_) >> word;
  EXPECT_EQ(word, "kept");
}

// A job's folder is private whatever the umask is, and also after a recovery.
TEST(JobsFolder, IsForItsUserAlone) {
  Job job("private");
  const mode_t before = ::umask(0);
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ::umask(before);
  ASSERT_TRUE(job.reaches(5)) << job.output();
  ASSERT_TRUE(job.kill("MS_ROLE=MS_WORKER"));
  const std::string folder = cat("/dev/shm/holdfast-", ::geteuid(), '/', job.name);
  ASSERT_TRUE(until([&] { return fs::exists(folder + "/recoveries.jsonl"); })) << job.output();
  std::vector<std::string> paths = {os::folder_of(folder), folder};
  for (const auto& name : os::names_in(folder)) paths.push_back(cat(folder, '/', name));
  for (const auto& path : paths) {
    struct stat about {};
    if (::lstat(path.c_str(), &about) != 0) continue;  // A draft that was renamed meanwhile.
    EXPECT_EQ(about.st_mode, S_ISDIR(about.st_mode) ? S_IFDIR | 0700U : S_IFREG | 0600U) << path;
    EXPECT_EQ(about.st_uid, ::geteuid()) << path;
  }
  EXPECT_TRUE(fs::exists(folder + "/rank-0.arena"));
  if (::geteuid() == 0) {
    EXPECT_EQ(os::as_user(kStranger,
                          [&] {
                            int opened = 0;
                            for (const auto& path : paths) {
                              if (::open(path.c_str(), O_RDONLY) >= 0 || errno != EACCES) ++opened;
                            }
                            return opened;
                          }),
              0);
  }
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
}

// A folder that can not be read because no descriptor is free must not count as one that is gone.
TEST(JobsFolder, OfALivingJobStaysWhateverTheLimitOfDescriptors) {
#ifdef HOLDFAST_SANITIZED
  GTEST_SKIP() << "a sanitizer asks by a pipe what memory is there, and takes all for bad";
#endif
  Job job("few-files-clean");
  job.launch(toy(job, 1'000'000, {"--worker_num", "1"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  for (int files = 4; files <= 9; ++files) {
    const auto clean = job.start(
        {"/bin/sh", "-c", cat("ulimit -n ", files, "; exec ", HOLDFAST, " clean --dry-run")}, {});
    const int code = job.wait(clean, 30);
    const bool seen = has(job.output(), cat("job ", job.name, " is left alone: its agent runs"));
    const bool refused = code != 0 && has(job.output(), "`ulimit -n`");
    EXPECT_NE(seen, refused) << files << ": " << job.output();
    ASSERT_TRUE(os::write_file_atomically(job.folder + "/output", ""));
  }
}

}  // namespace
}  // namespace holdfast::apps
