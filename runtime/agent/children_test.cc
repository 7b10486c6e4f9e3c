// Children: a lack of tasks or descriptors is an error, and does not end the agent.
#include "runtime/agent/children.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

namespace fs = std::filesystem;

// Returns 0 if spawn() succeeds, or fails with an error that contains `hint`; 77 if the limit can
// not be set.
int spawn(const std::string& folder, const char* hint, const std::function<bool()>& set_limit) {
  io::Loop loop;
  LogFolder logs(folder, [](const std::string&) {});
  Children children(
      loop,
      {.argv = {"/bin/sleep", "1000"}, .environment = {}, .job_directory = folder, .logs = &logs},
      [](const agent::Died&) {}, [](agent::SpareReady) {});
  if (!set_limit()) return 77;
  const auto spawned = children.spawn(
      {.process = 1, .role = agent::Role::kWorker, .node_id = "0", .attempt = 1, .incarnation = 1});
  if (spawned) return children.running() == 1 ? 0 : 1;
  std::fprintf(stderr, "%s\n", spawned.error().what.c_str());
  const bool told = spawned.error().what.find(hint) != std::string::npos;
  return children.running() == 0 && told ? 0 : 1;
}

// Spawns as a user without any other process, who may have so many tasks.
int spawn_with_tasks(rlim_t tasks, const std::string& folder) {
  const rlimit limit{tasks, tasks};
  const bool ready = ::chown(folder.c_str(), 54321, 54321) == 0 && ::setgid(54321) == 0 &&
                     ::setuid(54321) == 0 && ::setrlimit(RLIMIT_NPROC, &limit) == 0;
  return ready ? spawn(folder, "ulimit -u", [] { return true; }) : 77;
}

// Spawns with so many free descriptors. The kernel gives out the lowest free number first, so the
// limit counts from that.
int spawn_with_files(rlim_t files, const std::string& folder) {
  return spawn(folder, "ulimit -n", [files] {
    const os::Fd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlim_t most = static_cast<rlim_t>(first.get()) + files;
    const rlimit limit{most, most};
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  });
}

// Runs `spawn_with` in a process of its own for every limit up to `most`.
void expect_no_end(int (*spawn_with)(rlim_t, const std::string&), rlim_t most) {
  for (rlim_t limit = 1; limit <= most; ++limit) {
    std::string folder = fs::temp_directory_path() / "children-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(spawn_with(limit, folder));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    fs::remove_all(folder);
    ASSERT_TRUE(WIFEXITED(status)) << "limit " << limit << ": signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "only root can be another user";
    EXPECT_EQ(WEXITSTATUS(status), 0) << "limit " << limit;
  }
}

TEST(Children, AreRefusedWhereNoMoreTasksCanBeHad) {
  expect_no_end(spawn_with_tasks, 4);
}

TEST(Children, AreRefusedWhereNoMoreDescriptorsCanBeHad) {
#ifdef HOLDFAST_SANITIZED
  GTEST_SKIP() << "a sanitizer asks by a pipe what memory is there, and takes all for bad";
#endif
  expect_no_end(spawn_with_files, 16);
}

}  // namespace
}  // namespace holdfast::runtime
