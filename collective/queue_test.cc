// A queue runs all started operations in order, and returns the outcome of each.
#include "collective/queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

namespace holdfast::collective {
namespace {

using namespace std::chrono_literals;

TEST(Queue, RunsInTheOrderOfStartingAndTellsWhatIsNotYetDone) {
  Queue queue;
  std::atomic<bool> go{false};
  std::vector<int> order;
  const auto first = queue.start([&] {
    go.wait(false);
    order.push_back(1);
    return Verdict{};
  });
  const auto second = queue.start([&] {
    order.push_back(2);
    return Verdict{Outcome::kLeft, "no"};
  });
  EXPECT_FALSE(first->wait_for(0ns));
  EXPECT_FALSE(queue.is_idle());
  go = true;
  go.notify_all();
  EXPECT_EQ(second->wait()->outcome, Outcome::kLeft);
  EXPECT_EQ(second->wait()->why, "no");
  EXPECT_EQ((*first->wait_for(0ns))->outcome, Outcome::kDone);
  queue.drain();
  EXPECT_TRUE(queue.is_idle());
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(Queue, TellsWhenItIsEmptyAndAnOperationHasFailed) {
  std::atomic<int> threads{0};
  std::atomic<int> told{0};
  Queue queue([&] { ++threads; }, [&] { ++told; });
  const auto run = [&](Outcome first, Outcome second) {
    std::atomic<bool> go{false};
    (void)queue.start([&] {
      go.wait(false);
      return Verdict{first, {}};
    });
    (void)queue.start([&] { return Verdict{second, {}}; });
    go = true;
    go.notify_all();
    queue.drain();
    return told.load();
  };
  EXPECT_EQ(run(Outcome::kDone, Outcome::kDone), 0);
  EXPECT_EQ(run(Outcome::kAborted, Outcome::kDone), 1);
  EXPECT_EQ(run(Outcome::kDone, Outcome::kDone), 1);
  EXPECT_EQ(run(Outcome::kAborted, Outcome::kAborted), 2);
  EXPECT_EQ(threads, 1);
}

TEST(Queue, EndsWithWhatWasStarted) {
  int ran = 0;
  {
    Queue queue;
    for (int i = 0; i < 100; ++i) {
      static_cast<void>(queue.start([&] {
        ++ran;
        return Verdict{};
      }));
    }
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace holdfast::collective
