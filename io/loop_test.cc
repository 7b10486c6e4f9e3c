#include "io/loop.h"

#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include "io/testing.h"

namespace holdfast::io {
namespace {

using std::chrono::milliseconds;

TEST(Loop, RunsTimersInOrderOfTimeAndThenOfAsking) {
  Loop loop;
  std::vector<int> order;
  const Instant soon = Loop::now() + milliseconds(20);
  loop.at(soon, [&] { order.push_back(2); });
  loop.at(soon, [&] { order.push_back(3); });
  loop.at(soon + milliseconds(1), [&] {
    order.push_back(4);
    loop.stop();
  });
  loop.at(Instant(0), [&] { order.push_back(1); });
  run_to_stop(loop);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_GE(Loop::now(), soon + milliseconds(1));
}

TEST(Loop, NeverRunsACancelledTimer) {
  Loop loop;
  bool ran = false;
  Loop::TimerId second{};
  loop.at(Instant(0), [&] { loop.cancel(second); });  // Both are due in the same turn.
  second = loop.at(Instant(0), [&] { ran = true; });
  const auto later = loop.after(milliseconds(1), [&] { ran = true; });
  loop.cancel(later);
  loop.cancel(later);
  loop.cancel(Loop::TimerId::kNone);
  loop.after(milliseconds(10), [&] { loop.stop(); });
  run_to_stop(loop);
  EXPECT_FALSE(ran);
}

TEST(Loop, RunsPostedTasksOfOtherThreadsInTheirOrder) {
  Loop loop;
  std::vector<int> seen;
  const auto here = std::this_thread::get_id();
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      loop.post([&, i] {
        EXPECT_EQ(std::this_thread::get_id(), here);
        seen.push_back(i);
      });
    }
    loop.post([&] { loop.stop(); });
  });
  run_to_stop(loop);
  other.join();
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(Loop, LetsPostedTasksInBetweenTimersThatRenewThemselves) {
  Loop loop;
  std::function<void()> again = [&] { loop.at(Instant(0), again); };
  again();
  loop.post([&] { loop.post([&] { loop.stop(); }); });
  run_to_stop(loop);
}

TEST(Loop, ReturnsAtOnceIfItWasStoppedBefore) {
  Loop loop;
  int runs = 0;
  loop.stop();
  loop.post([&] { ++runs; });
  loop.run();
  EXPECT_EQ(runs, 0);
  loop.post([&] { loop.stop(); });
  run_to_stop(loop);
  EXPECT_EQ(runs, 1) << "a second run goes on where the first one stopped";
}

TEST(Loop, TakesADelayThatNeverEnds) {
  Loop loop;
  const auto never = loop.after(Duration::max(), [] { FAIL(); });
  loop.after(milliseconds(1), [&] { loop.stop(); });
  run_to_stop(loop);
  loop.cancel(never);
}

TEST(Loop, DropsWhatDidNotRunWhenItEnds) {
  const auto token = std::make_shared<int>();
  {
    Loop loop;
    loop.post([token] {});
    loop.after(std::chrono::hours(1), [token] {});
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(Loop, HearsTheSignalsThatItWasTold) {
  Loop loop;
  std::vector<int> heard;
  loop.on_signals({SIGUSR1, SIGUSR2}, [&](int number) {
    heard.push_back(number);
    if (heard.size() == 1) std::raise(SIGUSR2);
    if (heard.size() == 2) loop.stop();
  });
  std::raise(SIGUSR1);
  run_to_stop(loop);
  EXPECT_EQ(heard, (std::vector<int>{SIGUSR1, SIGUSR2}));
}

TEST(LoopDeathTest, RefusesATimerFromAnotherThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Loop loop;
        std::thread other;
        loop.post([&] { other = std::thread([&] { loop.at(Instant(0), [] {}); }); });
        loop.run();
      },
      "assertion failed");
}

}  // namespace
}  // namespace holdfast::io
