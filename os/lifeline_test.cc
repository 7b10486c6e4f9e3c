// The lifeline with holders that die, let go, come late or never.
#include "os/lifeline.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <thread>

#include "os/testing.h"

namespace holdfast::os {
namespace {

// A child that runs `life` and then lives until it is killed. Returns when `life` is done.
pid_t child_that(const std::function<void()>& life) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    life();
    if (write(ends[1], "x", 1) != 1) _exit(4);
    for (;;) pause();
  }
  char done = 0;
  EXPECT_EQ(read(ends[0], &done, 1), 1);
  close(ends[0]);
  close(ends[1]);
  return child;
}

void end(pid_t child) {
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// Leaks the lifeline, so that only a death ends it.
void hold_for_life(const std::string& path) {
  Result<Lifeline> lifeline = Lifeline::hold(path);
  if (!lifeline) _exit(5);
  new Lifeline(std::move(*lifeline));
}

Ending must_end(const std::string& path) {
  const std::atomic<bool> never = false;
  const Result<Ending> ending = wait_for_death(path, never);
  EXPECT_TRUE(ending);
  return *ending;
}

TEST(Lifeline, TellsOfADeathToEveryWatcher) {
  const TemporaryFolder directory("/dev/shm");
  const std::string path = directory / "line";
  const pid_t child = child_that([&] { hold_for_life(path); });
  auto first = std::async(std::launch::async, [&] { return must_end(path); });
  auto second = std::async(std::launch::async, [&] { return must_end(path); });
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  end(child);
  EXPECT_EQ(first.get(), Ending::kDied);
  EXPECT_EQ(second.get(), Ending::kDied);
  EXPECT_EQ(must_end(path), Ending::kDied);  // A watcher that comes too late learns it, too.
}

TEST(Lifeline, IsWatchedFromBeforeItIsHeld) {
  const TemporaryFolder directory("/dev/shm");
  const std::string path = directory / "line";
  ASSERT_TRUE(prepare_lifeline(path));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {  // Waits for a word, so that the watcher is there first.
    char word = 0;
    if (read(ends[0], &word, 1) != 1) _exit(4);
    hold_for_life(path);
    for (;;) raise(SIGKILL);
  }
  auto ending = std::async(std::launch::async, [&] { return must_end(path); });
  EXPECT_EQ(ending.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  EXPECT_EQ(ending.get(), Ending::kDied);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(ends[0]);
  close(ends[1]);
}

TEST(Lifeline, TellsALettingGoFromADeath) {
  const TemporaryFolder directory("/dev/shm");
  const std::string path = directory / "line";
  const pid_t child = child_that([&] {
    if (!Lifeline::hold(path)) _exit(5);  // A temporary: held and let go.
  });
  EXPECT_EQ(must_end(path), Ending::kReleased);
  end(child);
  EXPECT_EQ(must_end(path), Ending::kReleased);
}

TEST(Lifeline, IsLetGoInAnotherThreadToo) {
  const TemporaryFolder directory("/dev/shm");
  const std::string path = directory / "line";
  Result<Lifeline> lifeline = Lifeline::hold(path);
  ASSERT_TRUE(lifeline);
  std::thread([held = std::move(*lifeline)] {}).join();
  EXPECT_EQ(must_end(path), Ending::kReleased);
}

TEST(Lifeline, CanBeCancelledHeldOrNot) {
  const TemporaryFolder directory("/dev/shm");
  for (const bool held : {false, true}) {
    const std::string path = directory / (held ? "held" : "unheld");
    ASSERT_TRUE(prepare_lifeline(path));
    const Result<Lifeline> lifeline = Lifeline::hold(held ? path : directory / "other");
    ASSERT_TRUE(lifeline);
    std::atomic<bool> cancel = false;
    auto ending = std::async(std::launch::async, [&] { return wait_for_death(path, cancel); });
    cancel = true;
    ASSERT_EQ(ending.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_EQ(*ending.get(), Ending::kCancelled);
  }
}

TEST(Lifeline, OfAPredecessorIsNotTakenForTheNewOne) {
  const TemporaryFolder directory("/dev/shm");
  const std::string path = directory / "line";
  end(child_that([&] { hold_for_life(path); }));
  const pid_t second = child_that([&] { hold_for_life(path); });
  auto ending = std::async(std::launch::async, [&] { return must_end(path); });
  EXPECT_EQ(ending.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  end(second);
  EXPECT_EQ(ending.get(), Ending::kDied);
}

TEST(Lifeline, TellsWhatItsHolderHasHeardAlsoAfterItsEnd) {
  const TemporaryFolder directory("/dev/shm");
  const std::string path = directory / "line";
  ASSERT_TRUE(prepare_lifeline(path).has_value());
  EXPECT_EQ(lifeline_end(path), std::nullopt);
  for (const bool well : {false, true}) {
    {
      const auto held = Lifeline::hold(path);
      ASSERT_TRUE(held.has_value());
      held->note(7);
      held->note_end(well);
    }
    EXPECT_EQ(lifeline_version(path), 7);
    EXPECT_EQ(lifeline_end(path), well);
  }
  EXPECT_EQ(lifeline_end(path + ".none"), std::nullopt);
}

TEST(Lifeline, ThatIsNotThereIsAnErrorByName) {
  const TemporaryFolder directory("/dev/shm");
  const std::atomic<bool> never = false;
  const Result<Ending> ending = wait_for_death(directory / "none", never);
  ASSERT_FALSE(ending);
  EXPECT_NE(ending.error().what.find(directory / "none"), std::string::npos);
}

}  // namespace
}  // namespace holdfast::os
