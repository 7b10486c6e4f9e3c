// Joining: a generation forms once, with ranks of one run, with all ranks or none, in bounded time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "collective/test_job.h"
#include "os/testing.h"

namespace holdfast::collective {
namespace {

TEST(Join, OfOneRankNeedsNobody) {
  TestJob job(1, 4096);
  job.run([](Group& group) {
    std::vector<float> own = {3, 4};
    EXPECT_EQ(group.all_reduce(std::span(own)), Outcome::kDone);
    EXPECT_EQ(own, (std::vector<float>{3, 4}));
    EXPECT_EQ(group.barrier(), Outcome::kDone);
  });
  EXPECT_TRUE(job.segments().empty());
}

TEST(Join, WaitsForTheLateAndLeavesNoFileBehind) {
  TestJob job(2);
  std::jthread early([&] {
    const auto group = job.join(0);
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(group->barrier(), Outcome::kDone);
  });
  while (job.segments().empty()) std::this_thread::yield();
  struct stat status {};
  const std::string path = cat(job.base().directory, "/", job.segments().at(0));
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  const auto group = job.join(1);
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->barrier(), Outcome::kDone);
  EXPECT_TRUE(job.segments().empty());
}

TEST(Join, OfManyAtOnceMakesOneGroup) {
  TestJob job(8);
  for (int round = 0; round < 40; ++round) {
    job.run([](Group& group) { EXPECT_EQ(group.barrier(), Outcome::kDone); });
  }
}

TEST(Join, NamesTheMissingWhenTimeIsUp) {
  TestJob job(3);
  job.base().join_timeout = std::chrono::milliseconds(20);
  const auto group = Group::join(job.options(1));
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().blame, Blame::kWorld);
  EXPECT_EQ(group.error().what, "generation 1 did not form within 20 ms; ranks 0, 2 did not join");
}

TEST(Join, FormsAGenerationOnceAtMost) {
  TestJob job(2);
  job.base().join_timeout = std::chrono::milliseconds(20);
  EXPECT_FALSE(Group::join(job.options(1)));
  const auto late = Group::join(job.options(0));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().what, "another member gave up forming generation 1");
  job.base().join_timeout = std::chrono::minutes(1);
  job.base().generation = 2;
  job.run([](Group& group) { EXPECT_EQ(group.barrier(), Outcome::kDone); });
  EXPECT_TRUE(job.segments().empty()) << "the file that never formed must be gone";
}

TEST(Join, EndsForAllWhenOneIsCancelled) {
  TestJob job(3);
  std::stop_source stop;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group =
          rank == 0 ? Group::join(job.options(0), stop.get_token()) : Group::join(job.options(1));
      ASSERT_FALSE(group);
      if (rank == 0) {
        EXPECT_NE(group.error().what.find("was cancelled"), std::string::npos);
      }
    });
  }
  while (job.segments().empty()) std::this_thread::yield();
  stop.request_stop();
}

TEST(Join, RefusesARankThatHasJoinedAlready) {
  TestJob job(2);
  std::stop_source stop;
  std::atomic<int> refused{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const auto group = Group::join(job.options(0), stop.get_token());
      ASSERT_FALSE(group);
      if (group.error().blame != Blame::kPeer) return;
      EXPECT_EQ(group.error().what,
                "rank 0 has joined generation 1 already; a process that comes again needs a "
                "higher one");
      ++refused;
      stop.request_stop();
    });
  }
  threads.clear();
  EXPECT_EQ(refused.load(), 1);
}

TEST(Join, NeverOpensTheSegmentOfAnotherRun) {
  TestJob job(2);
  job.base().join_timeout = std::chrono::milliseconds(1);
  EXPECT_FALSE(Group::join(job.options(0)));  // Leaves its file behind, as a killed job does.
  ASSERT_EQ(job.segments().size(), 1U);
  job.base().join_timeout = std::chrono::minutes(1);
  job.base().run_id = 78;
  job.run([](Group& group) { EXPECT_EQ(group.barrier(), Outcome::kDone); });
}

TEST(Join, RefusesAFileThatIsNoSegment) {
  TestJob job(2);
  job.base().join_timeout = std::chrono::milliseconds(1);
  EXPECT_FALSE(Group::join(job.options(0)));
  const std::string path = cat(job.base().directory, "/", job.segments().at(0));
  std::ofstream(path, std::ios::trunc) << "half";
  const auto group = Group::join(job.options(0));
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().what, cat(path, " is no segment of this run's generation 1; remove it"));
}

TEST(Join, RefusesRanksThatDisagree) {
  TestJob job(2);
  job.base().join_timeout = std::chrono::milliseconds(1);
  EXPECT_FALSE(Group::join(job.options(0)));
  job.base().window_bytes *= 2;
  const auto group = Group::join(job.options(1));
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().blame, Blame::kPeer);
}

TEST(Join, RefusesImpossibleOptionsByName) {
  TestJob job(2, 4096);
  const auto error_of = [](Group::Options options) {
    const auto group = Group::join(options);
    return group ? std::string("joined") : group.error().what;
  };
  Group::Options o = job.options(2);
  EXPECT_EQ(error_of(o), "rank 2 is not within a world of 2 ranks");
  o = job.options(0);
  o.world_size = 10'001;
  EXPECT_EQ(error_of(o), "a group has 1 to 10000 ranks, not 10001");
  o = job.options(0);
  o.window_bytes = 100;
  EXPECT_EQ(error_of(o), "window_bytes is 100; at least 16384 are needed");
  o = job.options(0);
  o.registered.files.pop_back();
  EXPECT_EQ(error_of(o), "registered.files names 1 files for 2 ranks; one per rank is needed");
  o = job.options(0);
  o.directory += "/nowhere";
  EXPECT_NE(error_of(o).find("No such file or directory"), std::string::npos);
}

// Runs `body` in a child process where the group's directory is a tmpfs of `pages` pages. False if
// mounting is not allowed. If the child ends otherwise than with true, the test fails.
bool in_a_small_tmpfs(TestJob& job, std::size_t pages, const std::function<bool()>& body) {
  const auto ended = os::on_a_tmpfs(job.base().directory, cat("size=", pages * 4, "k"),
                                    [&] { return body() ? 0 : 1; });
  EXPECT_EQ(ended.value_or(0), 0) << "with " << pages << " pages";
  return ended.has_value();
}

// The tmpfs pages that a group of `world_size` ranks takes, read from the sentence of an error.
std::size_t pages_of(int world_size) {
  TestJob job(world_size);
  job.base().room_timeout = {};
  std::size_t pages = 0;
  std::string what;
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const bool mounted = in_a_small_tmpfs(job, 1, [&] {
    const auto group = Group::join(job.options(0));
    const std::string said = group ? "joined" : group.error().what;
    return ::write(pipe[1], said.data(), said.size()) > 0;
  });
  ::close(pipe[1]);
  char said[1024] = {};
  if (::read(pipe[0], said, sizeof said - 1) > 0) what = said;
  ::close(pipe[0]);
  const std::string words = cat("no room in ", job.base().directory, " for the group's segment: ");
  EXPECT_TRUE(!mounted || what.starts_with(words)) << what;
  if (what.starts_with(words)) pages = std::stoull(what.substr(words.size())) / 4096;
  return pages;
}

// There may be no room for the control pages, or for the windows. No rank dies by SIGBUS, and none
// waits for a rank that found no room.
TEST(Join, SaysThatThereIsNoRoom) {
  const std::size_t whole = pages_of(2);
  if (whole == 0) GTEST_SKIP() << "needs the right to mount: run it as root";
  for (std::size_t pages = 1; pages < whole; ++pages) {
    TestJob job(2);
    job.base().join_timeout = std::chrono::seconds(1);
    job.base().room_timeout = {};
    in_a_small_tmpfs(job, pages, [&] {
      std::atomic<int> said = 0;
      std::atomic<int> joined = 0;
      std::vector<std::jthread> threads;
      for (int k = 0; k < 2; ++k) {
        threads.emplace_back([&, k] {
          const auto group = Group::join(job.options(k));
          std::array<std::byte, 16> all{};
          if (group && (*group)->all_gather(std::span(all).first(8), all) == Outcome::kDone) {
            ++joined;
          }
          const std::string words = cat("no room in ", job.base().directory, " for the group's");
          if (!group && group.error().what.starts_with(words)) ++said;
        });
      }
      threads.clear();
      return said >= 1 && joined == 0;
    });
  }
}

// Windows take more memory at the first operation that needs it.
TEST(Join, SaysThatThereIsNoRoomForWhatARankShows) {
  const std::size_t whole = pages_of(3);
  if (whole == 0) GTEST_SKIP() << "needs the right to mount: run it as root";
  constexpr std::size_t kCount = 75'000;  // 300 KB: less than a half, and many pages.
  const std::vector<std::function<Outcome(Group&)>> operations = {
      [](Group& group) {
        std::vector<float> numbers(kCount, 1);
        const Outcome o = group.all_reduce(std::span(numbers));
        return o == Outcome::kDone && numbers.back() != 3 ? Outcome::kLeft : o;
      },
      [](Group& group) {
        std::vector<std::byte> bytes(4 * kCount, std::byte(group.rank()));
        const Outcome o = group.broadcast(bytes, 2);
        return o == Outcome::kDone && bytes.back() != std::byte(2) ? Outcome::kLeft : o;
      },
      [](Group& group) {
        std::vector<std::byte> all(12 * kCount);
        const std::vector<std::byte> mine(4 * kCount, std::byte(group.rank()));
        const Outcome o = group.all_gather(mine, all);
        return o == Outcome::kDone && all.back() != std::byte(2) ? Outcome::kLeft : o;
      }};
  const std::size_t most = whole + 3 * 2 * (4 * kCount / 4096 + 1) + 2;
  for (const auto& operation : operations) {
    for (std::size_t pages = whole + 2; pages <= most; pages += (most - whole - 2) / 8) {
      TestJob job(3);
      job.base().room_timeout = {};
      in_a_small_tmpfs(job, pages, [&] {
        std::atomic<int> done = 0;
        std::atomic<int> said = 0;
        job.run([&](Group& group) {
          const Outcome o = operation(group);
          if (o == Outcome::kDone) ++done;
          const bool names =
              group.why().starts_with(cat("no room in ", job.base().directory, ": rank "));
          if (o == Outcome::kMismatch && names) ++said;
        });
        return pages < whole + 100 ? said == 3 : pages == most ? done == 3 : done + said == 3;
      });
    }
  }
}

// The kernel may free the memory of a killed process a little after its successor has come.
TEST(Join, WaitsForRoomThatIsGivenBackInAMoment) {
  const std::size_t whole = pages_of(3);
  if (whole == 0) GTEST_SKIP() << "needs the right to mount: run it as root";
  constexpr std::size_t kCount = 75'000;
  const std::size_t pages = whole + 3 * 2 * (4 * kCount / 4096 + 1) + 2;
  // First there is no room for the segment, then none for the ranks' windows.
  for (const std::size_t held : {pages - 2, pages - whole - 8}) {
    TestJob job(3);
    in_a_small_tmpfs(job, pages, [&] {
      const std::string path = job.base().directory + "/held";
      std::jthread dying;
      {
        const os::Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        if (os::take_memory(file, 0, held * 4096) != 0) return false;
        dying = std::jthread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          ::unlink(path.c_str());
        });
      }
      std::atomic<int> done = 0;
      job.run([&](Group& group) {
        std::vector<float> numbers(kCount, 1);
        const Outcome o = group.all_reduce(std::span(numbers));
        if (o == Outcome::kDone && numbers.back() == 3) ++done;
      });
      return done == 3;
    });
  }
}

// All ranks make the segment at the same time. There is room for one segment, and for one page of
// each other rank's.
TEST(Join, TakesRoomForOneSegmentOnly) {
  constexpr int kRanks = 8;
  const std::size_t whole = pages_of(kRanks);
  if (whole == 0) GTEST_SKIP() << "needs the right to mount: run it as root";
  TestJob job(kRanks);
  in_a_small_tmpfs(job, whole + kRanks - 1, [&] {
    std::atomic<int> joined = 0;
    for (int generation = 1; generation <= 50; ++generation) {
      std::barrier start(kRanks);
      std::vector<std::jthread> threads;
      for (int k = 0; k < kRanks; ++k) {
        threads.emplace_back([&, k] {
          start.arrive_and_wait();
          if (Group::join(job.options(k))) ++joined;
        });
      }
      threads.clear();
      ++job.base().generation;
    }
    return joined == 50 * kRanks;
  });
}

TEST(Join, EndsForAllWhenOneCanNotMapAnArena) {
  TestJob job(2, 4096);
  std::filesystem::resize_file(job.base().registered.files[1], 100);
  const auto group = Group::join(job.options(0));
  ASSERT_FALSE(group);
  EXPECT_NE(group.error().what.find("arena-1 has 100 bytes where 4096 from byte 0 on"),
            std::string::npos);
  const auto other = Group::join(job.options(1));
  ASSERT_FALSE(other);
}

}  // namespace
}  // namespace holdfast::collective
