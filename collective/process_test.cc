// Ranks as processes: one is killed in an operation; the others are aborted and form anew.
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

// Shared memory by which the test and the processes tell each other how far they are.
struct Board {
  std::atomic<std::uint64_t> operations{0};  // Done by rank 0 in the first generation.
  std::atomic<int> abort_now{0};
  std::atomic<int> aborted{0};
};

constexpr int kRanks = 3;
constexpr std::size_t kCount = 300'000;

// The memory of the numbers: the registered memory of Group::Options, or (`own`) a region. A
// successor then has a new region, and the survivors keep theirs.
class Memory {
 public:
  Memory(const TestJob& job, int rank, bool own)
      : regions_(own ? std::make_shared<Regions>(job.options(rank).directory, rank) : nullptr) {
    if (own) region_ = *regions_->add(nullptr, kCount * sizeof(float));
  }
  [[nodiscard]] Result<std::unique_ptr<Group>> join(Group::Options options) const {
    options.regions = regions_;
    return Group::join(options);
  }
  [[nodiscard]] std::span<float> in(Group& group) const {
    const std::span bytes = region_ ? region_->bytes() : group.registered();
    return {reinterpret_cast<float*>(bytes.data()), kCount};
  }
  [[nodiscard]] Outcome sum(Group& group) const { return group.all_reduce(in(group)); }

 private:
  std::shared_ptr<Regions> regions_;
  std::shared_ptr<Region> region_;
};

Outcome sum_once(Group& group, const Memory& memory, std::uint64_t seed, bool* right) {
  const std::span<float> numbers = memory.in(group);
  fill(numbers, group.rank(), seed);
  const Outcome o = memory.sum(group);
  *right = same_bits<float>(numbers, reference_sum<float>(kRanks, kCount, seed));
  return o;
}

// Trains in the first generation until it is aborted. Only rank 0's control thread calls abort().
int train_until_aborted(const TestJob& job, int rank, const Memory& memory, Board& board) {
  auto group = memory.join(job.options(rank));
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
    const Outcome o = sum_once(**group, memory, i, &right);
    if (o == Outcome::kAborted) break;
    if (o != Outcome::kDone || !right) return 11;
    if (rank == 0) ++board.operations;
  }
  ++board.aborted;
  return 0;
}

int train_again(TestJob& job, int rank, const Memory& memory) {
  job.base().generation = 2;
  auto group = memory.join(job.options(rank));
  if (!group) return 20;
  for (std::uint64_t i = 0; i < 5; ++i) {
    bool right = false;
    if (sum_once(**group, memory, 100 + i, &right) != Outcome::kDone || !right) return 21;
  }
  return 0;
}

pid_t spawn(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  HF_ASSERT(pid >= 0);
  if (pid == 0) ::_exit(body());
  return pid;
}

class Processes : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Memory, Processes, ::testing::Bool(),
                         [](const auto& own) { return own.param ? "Own" : "OfTheGroup"; });

TEST_P(Processes, FormAnewAfterOneWasKilledInTheMidst) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow forked processes that make threads";
#endif
  const bool own = GetParam();
  TestJob job(kRanks, own ? 0 : kCount * sizeof(float));
  void* shared =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& board = *new (shared) Board;
  std::array<pid_t, kRanks> pids{};
  for (int rank = 0; rank < kRanks; ++rank) {
    pids[static_cast<std::size_t>(rank)] = spawn([&job, &board, rank, own] {
      const Memory memory(job, rank, own);
      const int first = train_until_aborted(job, rank, memory, board);
      return first != 0 ? first : train_again(job, rank, memory);
    });
  }
  while (board.operations < 3) std::this_thread::yield();
  ::kill(pids[2], SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(pids[2], &status, 0), pids[2]);
  EXPECT_TRUE(WIFSIGNALED(status));
  board.abort_now = 1;
  while (board.aborted < 2) std::this_thread::yield();
  pids[2] = spawn([&job, own] { return train_again(job, 2, Memory(job, 2, own)); });
  for (const pid_t pid : pids) {
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_TRUE(job.segments().empty());
  ::munmap(shared, sizeof(Board));
}

}  // namespace
}  // namespace holdfast::collective
