// make_dead_give_way(): dead processes give way, and living ones do not. A zombie keeps the policy
// that it died with until it is reaped, so a test can look at it for as long as it needs.
#include "os/idle.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace holdfast::os {
namespace {

using namespace std::chrono_literals;

class DeadGiveWay : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!may_undo_idle()) GTEST_SKIP() << "this user may not make an idle process ordinary again";
    pid_ = ::fork();
    if (pid_ == 0) {
      for (;;) ::pause();
    }
    ASSERT_GT(pid_, 0);
  }
  void TearDown() override {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  // Whether the child gets the policy within a minute.
  [[nodiscard]] bool comes_to(int policy) const {
    const auto until = std::chrono::steady_clock::now() + 60s;
    while (std::chrono::steady_clock::now() < until) {
      if (::sched_getscheduler(pid_) == policy) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  pid_t pid_ = 0;
  std::atomic<bool> cancel_ = false;
};

TEST_F(DeadGiveWay, UntilTheyAreGone) {
  ::kill(pid_, SIGKILL);
  std::thread watcher([this] { make_dead_give_way(pid_, cancel_, 1h); });
  EXPECT_TRUE(comes_to(SCHED_IDLE));
  cancel_ = true;
  watcher.join();
  EXPECT_EQ(::sched_getscheduler(pid_), SCHED_OTHER);
}

TEST_F(DeadGiveWay, NotForLongerThanTheirTime) {
  ::kill(pid_, SIGKILL);
  make_dead_give_way(pid_, cancel_, 1ms);
  EXPECT_EQ(::sched_getscheduler(pid_), SCHED_OTHER);
}

TEST_F(DeadGiveWay, TheLivingDoNot) {
  std::thread watcher([this] { make_dead_give_way(pid_, cancel_, 1h); });
  std::this_thread::sleep_for(20ms);  // Time in which a wrong change would show.
  EXPECT_EQ(::sched_getscheduler(pid_), SCHED_OTHER);
  cancel_ = true;
  watcher.join();
  EXPECT_EQ(::sched_getscheduler(pid_), SCHED_OTHER);
}

// A thread that is idle when it ends holds up whoever reaps its process.
TEST_F(DeadGiveWay, ByTheirFirstThreadsAlone) {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    std::thread([&] {
      const pid_t thread = ::gettid();
      (void)!::write(ends[1], &thread, sizeof thread);
      for (;;) ::pause();
    }).join();
  }
  pid_t thread = 0;
  ASSERT_EQ(::read(ends[0], &thread, sizeof thread), static_cast<ssize_t>(sizeof thread));
  make_group_idle(pid_);
  EXPECT_EQ(::sched_getscheduler(thread), SCHED_IDLE);
  make_group_ordinary(pid_);
  make_leaders_idle(pid_);
  EXPECT_EQ(::sched_getscheduler(pid_), SCHED_IDLE);
  EXPECT_EQ(::sched_getscheduler(thread), SCHED_OTHER);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Idle, IsNobodyWhereTheUserWantsAnotherPolicyForAll) {
  for (const int policy : {SCHED_BATCH, SCHED_IDLE}) {
    bool has = false;
    bool may = false;
    std::thread([&] {  // The policy is a thread's own.
      const sched_param parameters{};
      has = ::sched_setscheduler(0, policy, &parameters) == 0;
      may = may_undo_idle();
    })
        .join();
    if (!has) GTEST_SKIP() << "this process may not take policy " << policy;
    EXPECT_FALSE(may) << "policy " << policy;
  }
}

}  // namespace
}  // namespace holdfast::os
