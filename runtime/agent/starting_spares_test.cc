// StartingSpares, on a core that another process keeps busy, with a child that would use all of it.
#include "runtime/agent/starting_spares.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "os/idle.h"
#include "os/lifeline.h"
#include "os/process.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

// A child in a group of its own that computes on the first processor that this process may use.
pid_t start_computing() {
  cpu_set_t all;
  cpu_set_t one;
  CPU_ZERO(&one);
  ::sched_getaffinity(0, sizeof(all), &all);
  std::size_t first = 0;
  while (CPU_ISSET(first, &all) == 0) ++first;
  CPU_SET(first, &one);
  const pid_t pid = ::fork();
  if (pid != 0) {
    ::setpgid(pid, pid);
    return pid;
  }
  ::setpgid(0, 0);
  ::sched_setaffinity(0, sizeof(one), &one);
  for (volatile unsigned long count = 0;;) count = count + 1;
}

class StartingSparesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!os::may_undo_idle())
      GTEST_SKIP() << "this user may not make an idle process ordinary again";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    lifeline_ = folder_ + "/lifeline";
    ASSERT_TRUE(os::prepare_lifeline(lifeline_));
    other_ = start_computing();
    spare_ = start_computing();
  }
  void TearDown() override {
    for (const pid_t pid : {spare_, other_}) {
      if (pid <= 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }
  // The processor time that the spare gets beside the other process, in percent of the time that
  // passes.
  double percentage(Duration time) {
    const auto before = os::processor_time(spare_);
    const Instant began = io::Loop::now();
    loop_.after(time, [this] { loop_.stop(); });
    loop_.run();
    const auto used = static_cast<double>(os::processor_time(spare_) - before);
    return 100 * used / static_cast<double>((io::Loop::now() - began).count());
  }

  std::string folder_ = std::filesystem::temp_directory_path() / "starting-spares-XXXXXX";
  std::string lifeline_;
  io::Loop loop_;
  pid_t other_ = 0;
  pid_t spare_ = 0;
};

TEST_F(StartingSparesTest, TakeTheirShareAndNotMore) {
  StartingSpares starting(loop_, 20, true, [](agent::Process) { FAIL() << "it is not ready"; });
  starting.add(1, spare_, lifeline_);
  (void)percentage(500ms);  // Until it has used what it may use at once.
  const double share = percentage(2s);
  EXPECT_GT(share, 5);
  EXPECT_LT(share, 30);  // Two ordinary processes would have 50 each.
}

TEST_F(StartingSparesTest, TakeNothingOnceTheyAreReady) {
  agent::Process ready = 0;
  StartingSpares starting(loop_, 100, true, [&](agent::Process process) { ready = process; });
  starting.add(7, spare_, lifeline_);
  EXPECT_GT(percentage(500ms), 5);
  const auto lifeline = os::Lifeline::hold(lifeline_);
  ASSERT_TRUE(lifeline);
  lifeline->note_ready();
  (void)percentage(200ms);
  EXPECT_EQ(ready, 7U);
  EXPECT_EQ(::sched_getscheduler(spare_), SCHED_IDLE);
  EXPECT_LT(percentage(500ms), 3);
}

TEST_F(StartingSparesTest, WhoHasAPlaceByNowIsLeftAlone) {
  StartingSpares starting(loop_, 1, true, [](agent::Process) { FAIL() << "it is forgotten"; });
  starting.add(1, spare_, lifeline_);
  (void)percentage(500ms);
  starting.forget(1);
  os::make_group_ordinary(spare_);
  EXPECT_GT(percentage(1s), 5);
}

}  // namespace
}  // namespace holdfast::runtime
