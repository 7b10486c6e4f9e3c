// What the folders of jobs tell `holdfast status` and `holdfast clean`: who is an orphan, who
// lives, and what may be removed.
#include "runtime/jobs/job_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/text.h"
#include "io/loop.h"
#include "os/files.h"
#include "os/host.h"
#include "os/process.h"
#include "os/spawn.h"

namespace holdfast::runtime {
namespace {

FoundJob find(const std::string& name) {
  for (auto& job : jobs_on_this_host().jobs) {
    if (job.name == name) return job;
  }
  return {};
}

void remove(const std::string& directory) {
  const auto folder = os::open_runtime_directory(directory);
  EXPECT_TRUE(folder && *folder && folder->clear());
  EXPECT_EQ(::rmdir(directory.c_str()), 0);
}

bool is_locked(const std::string& file) {
  const auto folder = os::Folder::open(os::folder_of(file));
  return folder && *folder && folder->is_locked(file.substr(file.rfind('/') + 1));
}

os::Fd lock(const std::string& file) {
  const auto folder = os::Folder::open(os::folder_of(file));
  return folder && *folder ? folder->lock(file.substr(file.rfind('/') + 1)) : os::Fd();
}

TEST(FoundJob, TakesNobodyOfAnotherPidNamespaceForAnOrphan) {
  const std::string name = cat("job-files-test-", ::getpid());
  const auto directory = os::runtime_directory(name);
  ASSERT_TRUE(directory) << directory.error().what;
  // A dead agent, in our PID namespace: pid 1 has another start time.
  ASSERT_TRUE(os::write_file_atomically(cat(*directory, "/agent-1.json"),
                                        R"({"job": "x", "pid": 1, "start_time": 1})"));
  os::SpawnOptions options;
  options.environment = {cat("HOLDFAST_LIFELINE=", *directory, "/lifeline-1-1")};
  // The outer sh stays in our namespace, the inner one is the first process of another.
  options.argv = {"/bin/sh", "-c", "unshare -Urpf sh -c 'sleep 1000; :'; sleep 1000"};
  const auto child = os::spawn(options);
  ASSERT_TRUE(child) << child.error().what;
  const auto strange = [](pid_t pid) {
    const auto theirs = os::pid_namespace(pid);
    return theirs && theirs != os::pid_namespace();
  };
  FoundJob job;
  const auto there = [&] {
    job = find(name);
    return std::ranges::any_of(job.users, strange) || std::ranges::any_of(job.orphans, strange);
  };
  const Instant until = io::Loop::now() + std::chrono::seconds(5);
  bool found = there();
  for (; !found && io::Loop::now() < until; found = there()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(std::ranges::count(job.orphans, child->pid), 1);
  EXPECT_FALSE(std::ranges::any_of(job.orphans, strange));
  EXPECT_EQ(std::ranges::any_of(job.users, strange), found);
  (void)os::signal_group(child->pid, SIGKILL);
  (void)os::wait_for(child->pidfd.get());
  remove(*directory);
  if (!found) GTEST_SKIP() << "no PID namespace can be made here";
}

// With containers that share /dev/shm, pids of the other containers mean nothing here.
TEST(FoundJob, KnowsByALockThatOneOfAnotherPidNamespaceLives) {
  const std::string name = cat("job-files-lock-test-", ::getpid());
  const auto directory = os::runtime_directory(name);
  ASSERT_TRUE(directory) << directory.error().what;
  // Like the file of an agent in another PID namespace, whose pid names another process here: this
  // one.
  const std::string file = *directory + "/agent-1.json";
  ASSERT_TRUE(os::write_file_atomically(
      file, cat(R"({"job": "x", "port": 1, "start_time": 1, "pid": )", ::getpid(), '}')));
  EXPECT_FALSE(find(name).agent_alive);
  {
    const os::Fd held = lock(file);
    ASSERT_TRUE(held);
    EXPECT_TRUE(find(name).agent_alive);
    EXPECT_TRUE(find(name).master_alive);
  }
  EXPECT_FALSE(find(name).agent_alive);
  ASSERT_TRUE(write_agent_file(*directory, {.job = name}));
  EXPECT_TRUE(is_locked(cat(*directory, "/agent-", ::getpid(), ".json")));
  remove(*directory);
}

// A job that died: its folder, and what `holdfast clean` has found there.
struct Dead {
  explicit Dead(const std::string& test) : name(cat(test, '-', ::getpid())) {
    EXPECT_TRUE(os::write_file_atomically(directory + "/scheduler.json",
                                          R"({"job": "x", "pid": 1, "start_time": 1})"));
    found = find(name);
    EXPECT_EQ(found.name, name);
    EXPECT_FALSE(found.alive());
  }
  const std::string name;
  const std::string directory = *os::runtime_directory(name);
  FoundJob found;
};

// Whether a process waits for the lock of this folder.
bool is_waited_for(const std::string& folder) {
  struct stat about {};
  EXPECT_EQ(::stat(folder.c_str(), &about), 0);
  const auto locks = os::read_file("/proc/locks");
  EXPECT_TRUE(locks);
  const std::string inode = cat(':', about.st_ino, ' ');
  for (std::size_t at = 0; (at = locks->find("-> FLOCK", at)) != std::string::npos; ++at) {
    if (locks->substr(at, locks->find('\n', at) - at).find(inode) != std::string::npos) return true;
  }
  return false;
}

TEST(Clean, RemovesWhatIsStillDead) {
  const Dead dead("job-files-dead-test");
  const auto removed = remove_if_still_dead(dead.found);
  ASSERT_TRUE(removed) << removed.error().what;
  EXPECT_TRUE(*removed);
  EXPECT_NE(::access(dead.directory.c_str(), F_OK), 0);
}

// A job that was found dead may live by the time that it is removed.
TEST(Clean, LeavesAJobAloneThatHasBegunSinceItWasFound) {
  const Dead dead("job-files-begun-test");
  ASSERT_TRUE(write_scheduler_file(dead.directory, {.job = dead.name}));
  const auto removed = remove_if_still_dead(dead.found);
  ASSERT_TRUE(removed) << removed.error().what;
  EXPECT_FALSE(*removed);
  EXPECT_EQ(find(dead.name).scheduler->pid, ::getpid());
  remove(dead.directory);
}

TEST(Clean, WaitsForWhoeverWritesItselfDown) {
  const Dead dead("job-files-turn-test");
  const std::string all_jobs = os::folder_of(dead.directory);
  os::Fd turn = os::Folder::open(all_jobs)->wait_for_lock();
  ASSERT_TRUE(turn);
  auto removed = std::async(std::launch::async, [&] { return remove_if_still_dead(dead.found); });
  const Instant until = io::Loop::now() + std::chrono::seconds(60);
  while (!is_waited_for(all_jobs) && io::Loop::now() < until &&
         removed.wait_for(std::chrono::milliseconds(2)) != std::future_status::ready) {
  }
  // As an agent does it while it has the lock.
  const auto agent = os::Folder::open(dead.directory)->write_locked("agent-1.json", "{}");
  turn.reset();
  ASSERT_TRUE(agent) << agent.error().what;
  const auto result = removed.get();
  ASSERT_TRUE(result) << result.error().what;
  EXPECT_FALSE(*result);
  remove(dead.directory);
}

// The folder of a dead job, which a new one of the same name is about to take.
TEST(Clean, CostsNoJobItsFolderAsItBegins) {
  const Dead dead("job-files-again-test");
  ASSERT_TRUE(os::runtime_directory(dead.name));
  const auto removed = remove_if_still_dead(dead.found);
  ASSERT_TRUE(removed && *removed);
  const auto written = write_agent_file(dead.directory, {.job = dead.name, .port = 1});
  ASSERT_TRUE(written) << written.error().what;
  EXPECT_TRUE(is_locked(cat(dead.directory, "/agent-", ::getpid(), ".json")));
  remove(dead.directory);
}

// Without the lock (no descriptor is left, say), it would not see a job that begins.
TEST(Clean, RemovesNothingIfItCanNotHaveItsTurn) {
#ifdef HOLDFAST_SANITIZED
  GTEST_SKIP() << "a sanitizer asks by a pipe what memory is there, and takes all for bad";
#endif
  const Dead dead("job-files-no-turn-test");
  struct rlimit usual {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  // Two descriptors are enough to look, but not to lock as well. The parent of this process may
  // have left some open behind the first free one.
  int second_free = 0;
  {
    const os::Fd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    second_free = os::Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
  }
  rlimit few = usual;
  few.rlim_cur = static_cast<rlim_t>(second_free) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto removed = remove_if_still_dead(dead.found);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  ASSERT_FALSE(removed);
  EXPECT_NE(removed.error().what.find("cannot lock "), std::string::npos) << removed.error().what;
  EXPECT_EQ(find(dead.name).name, dead.name);
  remove(dead.directory);
}

// A process that looks whether a job lives (holdfast status, clean) must not hide it from others.
TEST(FoundJob, IsLockedWhoeverLooksAtItAsItBegins) {
  const std::string name = cat("job-files-look-test-", ::getpid());
  const auto directory = os::runtime_directory(name);
  ASSERT_TRUE(directory) << directory.error().what;
  const std::string file = cat(*directory, "/agent-", ::getpid(), ".json");
  ASSERT_TRUE(write_agent_file(*directory, {.job = name}));
  std::atomic<bool> over = false;
  std::atomic<int> looks = 0;
  std::atomic<int> found_free = 0;
  std::thread other([&] {
    for (; !over; ++looks) found_free += is_locked(file) ? 0 : 1;
  });
  for (int i = 0; i < 500; ++i) {
    const int before = looks;
    while (looks == before) std::this_thread::yield();
    EXPECT_TRUE(write_agent_file(*directory, {.job = name}));
    EXPECT_TRUE(is_locked(file));
  }
  over = true;
  other.join();
  EXPECT_EQ(found_free, 0);
  remove(*directory);
}

// With containers that share /dev/shm, each may have a folder of that name, or one folder may have
// two names.
TEST(LogFolder, IsKnownByItsNumbersAndNotByItsName) {
  const std::string name = cat("job-files-logs-test-", ::getpid());
  const auto directory = os::runtime_directory(name);
  ASSERT_TRUE(directory) << directory.error().what;
  struct stat folder {};
  ASSERT_EQ(::stat(directory->c_str(), &folder), 0);
  const std::string file = *directory + "/agent-1.json";
  const auto refused = [&](const std::string& log_dir, std::uint64_t inode) {
    EXPECT_TRUE(os::write_file_atomically(
        file, cat(R"({"job": "x", "pid": 1, "start_time": 1, "log_dir": ")", log_dir,
                  R"(", "log_device": )", folder.st_dev, R"(, "log_inode": )", inode, '}')));
    const os::Fd held = lock(file);
    EXPECT_TRUE(held);
    return !check_log_folder({.job = name, .log_dir = *directory});
  };
  EXPECT_FALSE(refused(*directory, folder.st_ino + 1));
  EXPECT_TRUE(refused("/its/name/elsewhere", folder.st_ino));
  remove(*directory);
}

}  // namespace
}  // namespace holdfast::runtime
