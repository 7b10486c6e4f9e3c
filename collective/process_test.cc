// Ranks that are processes: one is killed in the midst, the others are aborted and form anew.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <new>

#include "collective/test_job.h"

namespace holdfast::collective {
namespace {

// What the test and the processes tell each other.
struct Board {
  std::atomic<std::uint64_t> operations{0};  // Done by rank 0 in the first generation.
  std::atomic<int> abort_now{0};
  std::atomic<int> aborted{0};
};

constexpr int kRanks = 3;
constexpr std::size_t kCount = 300'000;

Outcome sum_once(Group& group, std::uint64_t seed, bool* right) {
  const std::span numbers(reinterpret_cast<float*>(group.registered().data()), kCount);
  fill(numbers, group.rank(), seed);
  const Outcome o = group.all_reduce(numbers);
  *right = same_bits<float>(numbers, reference_sum<float>(kRanks, kCount, seed));
  return o;
}

// First generation, until aborted. Rank 0's control thread is the only one that calls abort().
int train_until_aborted(const TestJob& job, int rank, Board& board) {
  auto group = Group::join(job.options(rank));
  if (!group) return 10;
  std::jthread control;
  if (rank == 0) {
    control = std::jthread([&] {
      while (board.abort_now == 0) std::this_thread::yield();
      (*group)->abort();
    });
  }
  for (std::uint64_t i = 0;; ++i) {
    bool right = false;
    const Outcome o = sum_once(**group, i, &right);
    if (o == Outcome::kAborted) break;
    if (o != Outcome::kDone || !right) return 11;
    if (rank == 0) ++board.operations;
  }
  ++board.aborted;
  return 0;
}

int train_again(TestJob& job, int rank) {
  job.base().generation = 2;
  auto group = Group::join(job.options(rank));
  if (!group) return 20;
  for (std::uint64_t i = 0; i < 5; ++i) {
    bool right = false;
    if (sum_once(**group, 100 + i, &right) != Outcome::kDone || !right) return 21;
  }
  return 0;
}

pid_t spawn(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  HF_ASSERT(pid >= 0);
  if (pid == 0) ::_exit(body());
  return pid;
}

TEST(Processes, FormAnewAfterOneWasKilledInTheMidst) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow forked processes that make threads";
#endif
  TestJob job(kRanks, kCount * sizeof(float));
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& board = *new (memory) Board;
  std::array<pid_t, kRanks> pids{};
  for (int rank = 0; rank < kRanks; ++rank) {
    pids[static_cast<std::size_t>(rank)] = spawn([&job, &board, rank] {
      const int first = train_until_aborted(job, rank, board);
      return first != 0 ? first : train_again(job, rank);
    });
  }
  while (board.operations < 3) std::this_thread::yield();
  ::kill(pids[2], SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(pids[2], &status, 0), pids[2]);
  EXPECT_TRUE(WIFSIGNALED(status));
  board.abort_now = 1;
  while (board.aborted < 2) std::this_thread::yield();
  pids[2] = spawn([&job] { return train_again(job, 2); });
  for (const pid_t pid : pids) {
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_TRUE(job.segments().empty());
  ::munmap(memory, sizeof(Board));
}

}  // namespace
}  // namespace holdfast::collective
