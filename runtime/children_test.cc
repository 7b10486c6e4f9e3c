// Children: that what can not be had is an error, and not the end of the agent.
#include "runtime/children.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

namespace fs = std::filesystem;

// As another user, who has no other process: 0 if the n-th task is an error or all could be had.
int spawn_with(rlim_t tasks, const std::string& folder) {
  const rlimit limit{tasks, tasks};
  const bool ready = ::chown(folder.c_str(), 54321, 54321) == 0 && ::setgid(54321) == 0 &&
                     ::setuid(54321) == 0 && ::setrlimit(RLIMIT_NPROC, &limit) == 0;
  if (!ready) return 77;
  io::Loop loop;
  LogFolder logs(folder, [](const std::string&) {});
  Children children(
      loop,
      {.argv = {"/bin/sleep", "1000"}, .environment = {}, .job_directory = folder, .logs = &logs},
      [](const agent::Died&) {});
  const auto spawned = children.spawn(
      {.process = 1, .role = agent::Role::kWorker, .node_id = "0", .attempt = 1, .incarnation = 1});
  if (spawned) return children.running() == 1 ? 0 : 1;
  return children.running() == 0 && !spawned.error().what.empty() ? 0 : 1;
}

TEST(Children, AreRefusedWhereNoMoreTasksCanBeHad) {
  for (rlim_t tasks = 1; tasks <= 4; ++tasks) {
    std::string folder = fs::temp_directory_path() / "children-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(spawn_with(tasks, folder));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    fs::remove_all(folder);
    ASSERT_TRUE(WIFEXITED(status)) << tasks << " tasks: signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "only root can be another user";
    EXPECT_EQ(WEXITSTATUS(status), 0) << tasks << " tasks";
  }
}

}  // namespace
}  // namespace holdfast::runtime
