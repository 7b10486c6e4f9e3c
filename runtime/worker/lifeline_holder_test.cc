// LifelineHolder: whose death it tells of, how soon, and what it tells nobody.
#include "runtime/worker/lifeline_holder.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>

#include "base/text.h"
#include "os/lifeline.h"
#include "os/process.h"
#include "os/spawn.h"

namespace holdfast::runtime {
namespace {

struct Place {
  std::string folder = cat(::testing::TempDir(), "lifeline-holder-", ::getpid());
  config::Settings settings;
  Place() {
    std::filesystem::create_directories(folder);
    settings.lifeline = folder + "/lifeline";
    if (!os::prepare_lifeline(settings.lifeline)) std::abort();
  }
  ~Place() { std::filesystem::remove_all(folder); }
};

os::Ending ending_of(const Place& place) {
  const std::atomic<bool> never = false;
  const auto ending = os::wait_for_death(place.settings.lifeline, never);
  EXPECT_TRUE(ending);
  return ending ? *ending : os::Ending::kCancelled;
}

void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  (void)::sched_setaffinity(0, sizeof(set), &set);
}

// A child whose holder runs, and that then computes for ever on a core that it hardly ever gets.
pid_t starved_child(const Place& place, int core) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto holder = LifelineHolder::start(place.settings);
    if (!holder || ::write(ends[1], "x", 1) != 1) ::_exit(1);
    const sched_param parameters{};
    ::sched_setscheduler(0, SCHED_IDLE, &parameters);
    stay_on(core);
    for (std::atomic<int> spins = 0;;) ++spins;
  }
  ::close(ends[1]);  // So that read() returns if the child ends.
  char held = 0;
  EXPECT_EQ(::read(ends[0], &held, 1), 1);
  ::close(ends[0]);
  return child;
}

TEST(LifelineHolder, TellsOfADeathBeforeTheTrainingThreadGetsAProcessorToDieOn) {
  const int core = ::sched_getcpu();
  bool earlier = false;
  for (int i = 0; i < 50 && !earlier; ++i) {
    const Place place;
    const pid_t child = starved_child(place, core);
    std::atomic<bool> runs = false;
    std::atomic<bool> over = false;
    // Started after the fork: in a forked child of a process with threads, sanitizers allow no new
    // ones.
    std::thread busy([&] {
      stay_on(core);
      while (!over) {
        runs = true;
      }
    });
    // Until this thread runs, the child has the core for itself.
    while (!runs) std::this_thread::yield();
    ::kill(child, SIGKILL);
    EXPECT_EQ(ending_of(place), os::Ending::kDied);
    earlier = !os::is_exiting(child);
    over = true;
    busy.join();
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  }
  EXPECT_TRUE(earlier) << "in none of 50 deaths";
}

TEST(LifelineHolder, LetsGoInGoodOrderAndNotForAForkedChild) {
  const Place place;
  {
    const auto holder = LifelineHolder::start(place.settings);
    ASSERT_TRUE(holder) << holder.error().what;
    EXPECT_EQ(os::lifeline_holder(place.settings.lifeline), ::getpid());
    const pid_t child = ::fork();
    if (child == 0) {
      (*holder)->~LifelineHolder();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    std::atomic<bool> cancel = false;
    auto ending = std::async(std::launch::async,
                             [&] { return *os::wait_for_death(place.settings.lifeline, cancel); });
    EXPECT_EQ(ending.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
    cancel = true;
    EXPECT_EQ(ending.get(), os::Ending::kCancelled) << "the parent still holds it";
  }
  EXPECT_EQ(ending_of(place), os::Ending::kReleased);
}

TEST(LifelineHolder, SaysWhyItCanNotHold) {
  config::Settings settings;
  settings.lifeline = "/nowhere/at/all/lifeline";
  const auto holder = LifelineHolder::start(settings);
  ASSERT_FALSE(holder);
  EXPECT_NE(holder.error().what.find("HOLDFAST_LIFELINE"), std::string::npos);
  settings.lifeline.clear();
  const auto none = LifelineHolder::start(settings);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
}

}  // namespace
}  // namespace holdfast::runtime
