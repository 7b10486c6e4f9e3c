// Teams: their operations, who may be in one, and how an abort of the current generation ends all.
#include "collective/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "collective/current_generation.h"
#include "collective/operations.h"
#include "collective/test_job.h"

namespace holdfast::collective {
namespace {

using namespace std::chrono_literals;
using Current = std::shared_ptr<CurrentGeneration>;

Current current_of(const TestJob& job) {
  const Group::Options options = job.options(0);
  return std::make_shared<CurrentGeneration>(
      CurrentGeneration::Options{.directory = options.directory,
                                 .run_id = options.run_id,
                                 .join_timeout = 1min,
                                 .team_operations = std::make_shared<std::atomic<std::uint64_t>>(),
                                 .team_waits = std::make_shared<std::atomic<std::uint64_t>>()});
}

// Each of `members` opens the team in generation 1, in a thread of its own, and calls `body`.
void run(const TestJob& job, const std::vector<Rank>& members,
         const std::function<void(Team&, CurrentGeneration&)>& body) {
  std::vector<std::jthread> threads;
  for (const Rank rank : members) {
    threads.emplace_back([&, rank] {
      const Current current = current_of(job);
      (void)current->begin(1);
      auto team = Team::open(current, rank, 3, members, "some", "test-");
      ASSERT_TRUE(team) << team.error().what;
      body(**team, *current);
    });
  }
}

void expect_done(Result<Operation> operation) {
  ASSERT_TRUE(operation) << operation.error().what;
  const auto verdict = (*std::move(operation)).run();
  ASSERT_TRUE(verdict) << verdict.error().what;
  EXPECT_EQ(verdict->outcome, Outcome::kDone) << verdict->why;
}

std::string error_of(const Result<Operation>& operation) {
  return operation ? "none" : operation.error().what;
}

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

TEST(Team, ReducesBroadcastsAndGathersInTheOrderOfItsRanks) {
  TestJob job(3);
  run(job, {2, 0}, [](Team& team, CurrentGeneration&) {
    const std::int32_t me = team.rank();
    expect_done(barrier(team));
    std::vector<std::int32_t> one = {10 + me};
    expect_done(broadcast(team, bytes_of(one), 1));
    EXPECT_EQ(one[0], 11);
    std::vector<std::int32_t> mine = {me, me + 1};
    std::vector<std::int32_t> all(4);
    expect_done(all_gather(team, bytes_of(mine), bytes_of(all).data()));
    EXPECT_EQ(all, (std::vector{0, 1, 1, 2}));
    std::vector<std::int32_t> sum(2);
    expect_done(all_reduce(team, mine.data(), std::span(sum), Op::kSum));
    EXPECT_EQ(sum, (std::vector{1, 3}));
    std::vector<std::int32_t> greatest(1);
    expect_done(reduce_scatter(team, mine.data(), std::span(greatest), Op::kMax));
    EXPECT_EQ(greatest[0], 1 + me);
  });
}

// An agent tells by this which rank waits for others, and which one holds them up.
TEST(Team, CountsWhoWaitsForItAndWhatHasEnded) {
  TestJob job(3);
  std::atomic<bool> may_come = false;
  std::vector<std::jthread> threads;
  for (const Rank rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      const Current current = current_of(job);
      const auto& [ended, waits] =
          std::tie(*current->options().team_operations, *current->options().team_waits);
      (void)current->begin(1);
      auto team = *Team::open(current, rank, 3, std::vector<Rank>{0, 1}, "some", "test-");
      if (rank == 1) may_come.wait(false);
      const auto work = barrier(*team).start();
      EXPECT_TRUE(rank == 1 || ended == 0);
      EXPECT_EQ(waits, 0U) << "to have started it is not to wait for it";
      std::jthread waiter([&] { EXPECT_EQ(work->wait()->outcome, Outcome::kDone); });
      if (rank == 0) {
        while (waits == 0) std::this_thread::yield();
        may_come = true;
        may_come.notify_all();
      }
      waiter.join();
      EXPECT_EQ(ended, 1U);
      EXPECT_EQ(waits, 0U);
      expect_done(barrier(*team));
      EXPECT_EQ(ended, 2U);
    });
  }
}

TEST(Team, ExchangesBlocksOfAnySize) {
  TestJob job(3);
  run(job, {0, 1, 2}, [](Team& team, CurrentGeneration&) {
    const auto me = static_cast<std::uint8_t>(team.rank());
    // Rank r sends r + k bytes to rank k.
    Blocks out;
    Blocks in;
    std::vector<std::uint8_t> want;
    for (std::uint8_t k = 0; k < 3; ++k) {
      out.bytes.push_back(me + k);
      in.bytes.push_back(k + me);
      want.insert(want.end(), k + me, k);
    }
    std::vector<std::uint8_t> sent(3U * me + 3, me);
    std::vector<std::uint8_t> got(want.size());
    out.data = bytes_of(sent).data();
    in.data = bytes_of(got).data();
    expect_done(all_to_all(team, out, in, false));
    EXPECT_EQ(got, want);
    if (me == 1) ++in.bytes[2];
    const auto verdict = all_to_all(team, out, in, false).run();
    ASSERT_TRUE(verdict);
    EXPECT_EQ(verdict->outcome, Outcome::kMismatch);
    EXPECT_EQ(verdict->why,
              "rank 2 sends 3 bytes to rank 1, which expects 4 (an all-to-all); the sizes of both "
              "must be equal");
  });
}

TEST(Team, SendsAndReceivesByTagWhateverElseIsUnderWay) {
  TestJob job(3);
  run(job, {0, 1}, [](Team& team, CurrentGeneration&) {
    std::vector<std::int32_t> a = {1};
    std::vector<std::int32_t> b = {2};
    if (team.rank() == 0) {
      expect_done(send(team, bytes_of(b), 1, 7));
      expect_done(send(team, bytes_of(a), 1, 0));
      return;
    }
    std::vector<std::int32_t> first(1);
    std::vector<std::int32_t> second(1);
    const auto work = (*receive(team, bytes_of(first), 0, 0)).start();
    expect_done(receive(team, bytes_of(second), 0, 7));
    EXPECT_EQ(work->wait()->outcome, Outcome::kDone);
    EXPECT_EQ(first, a);
    EXPECT_EQ(second, b);
  });
}

TEST(Team, RefusesWhatNoRankCouldServe) {
  TestJob job(3);
  run(job, {0, 1}, [](Team& team, CurrentGeneration&) {
    std::vector<float> own(2);
    EXPECT_EQ(error_of(broadcast(team, bytes_of(own), 2)),
              "a broadcast from rank 2: the group has ranks 0 to 1");
    EXPECT_EQ(
        error_of(send(team, bytes_of(own), team.rank(), 0)),
        cat("a send to rank ", team.rank(), ": it must be another rank of the group, 0 to 1"));
    EXPECT_EQ(error_of(receive(team, bytes_of(own), 2, 0)),
              "a receive from rank 2: it must be another rank of the group, 0 to 1");
    EXPECT_EQ(error_of(all_reduce(team, own.data(), std::span(own), Op::kXor)),
              "there is no bitwise xor of float32; use whole numbers or bool");
  });
}

TEST(Team, OpensForItsMembersAlone) {
  TestJob job(3);
  const auto error_of_open = [&](const std::vector<Rank>& ranks, std::string_view name) {
    const auto team = Team::open(current_of(job), 0, 3, ranks, name, "test-");
    return team ? "none" : team.error().what;
  };
  EXPECT_EQ(error_of_open({0, 1}, "a-b.c_9"), "none");
  EXPECT_EQ(error_of_open({0}, "a/b"),
            "a group's name is 1 to 60 letters, digits, '.', '_', '-', not 'a/b'");
  EXPECT_NE(error_of_open({0}, std::string(61, 'a')), "none");
  EXPECT_EQ(error_of_open({0, 3}, "a"), "group a: there is no rank 3 in a world of 3");
  EXPECT_EQ(error_of_open({0, 1, 1}, "a"), "group a names a rank twice");
  EXPECT_EQ(error_of_open({1, 2}, "a"), "rank 0 is not in group a; only its members open it");
}

TEST(Team, IsOfNoUseWithoutAGeneration) {
  TestJob job(3);
  const auto all = Team::of_world(current_of(job), std::make_shared<Queue>(), 0, 3);
  const auto verdict = barrier(*all).run();
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->outcome, Outcome::kAborted);
  EXPECT_NE(verdict->why.find("there is no whole generation of this group now"), std::string::npos);
}

// Calls `body` on every rank with a team of the world and the queue of that team.
void run_world(TestJob& job,
               const std::function<void(std::unique_ptr<Team>, Queue& queue, Group&)>& body) {
  job.run([&](Group& group) {
    const Current current = current_of(job);
    (void)current->begin(1);
    current->formed({&group, [](Group*) {}});
    const auto queue = std::make_shared<Queue>();
    body(Team::of_world(current, queue, group.rank(), group.world_size()), *queue, group);
  });
}

TEST(Team, OfTheWorldKeepsTheOrderOfAllThatItsQueueIsGiven) {
  constexpr std::size_t kCount = 3000;
  constexpr std::uint64_t kSums = 20;
  TestJob job(3);
  run_world(job, [](const std::unique_ptr<Team>& team, Queue& queue, Group& group) {
    std::vector<std::vector<float>> own(kSums, std::vector<float>(kCount));
    for (std::uint64_t i = 0; i < kSums; ++i) {  // By turns through the team and the queue itself.
      const std::span<float> numbers = own[i];
      fill(numbers, group.rank(), i);
      if (i % 2 == 0) {
        (void)(*all_reduce(*team, own[i].data(), numbers, Op::kSum)).start();
      } else {
        (void)queue.start([=, &group] { return Verdict{group.all_reduce(numbers), {}}; });
      }
    }
    expect_done(barrier(*team));
    for (std::uint64_t i = 0; i < kSums; ++i) {
      EXPECT_TRUE(same_bits<float>(own[i], reference_sum<float>(3, kCount, i))) << i;
    }
  });
}

TEST(Team, EndsWhatIsUnderWayWhenItIsDestroyed) {
  TestJob job(2);
  run_world(job, [](std::unique_ptr<Team> team, Queue& queue, Group& group) {
    if (group.rank() == 1) {
      while (!group.aborted()) std::this_thread::yield();
      return;
    }
    const auto work = barrier(*team).start();  // For rank 1, which does not come.
    team.reset();
    EXPECT_TRUE(queue.is_idle());
    EXPECT_EQ(work->wait()->outcome, Outcome::kAborted);
  });
}

TEST(Team, SaysWhyItsGroupCouldNotForm) {
  TestJob job(3);
  const Current current = current_of(job);
  (void)current->begin(1);
  std::filesystem::remove_all(job.base().directory);
  auto team = *Team::open(current, 0, 3, std::vector<Rank>{0, 1}, "some", "test-");
  const auto verdict = barrier(*team).run();
  ASSERT_FALSE(verdict);
  EXPECT_EQ(verdict.error().what.find("cannot make"), 0U);
}

// ---- Abort --------------------------------------------------------------------------------------

TEST(CurrentGeneration, EndsWhatWaitsInATeamAndTheNextGenerationWorksAgain) {
  TestJob job(3);
  std::atomic<bool> waits{false};
  std::atomic<int> works_again{0};
  run(job, {0, 1}, [&](Team& team, CurrentGeneration& current) {
    expect_done(barrier(team));
    if (team.rank() == 0) {
      const auto work = barrier(team).start();  // For rank 1, which does not come.
      EXPECT_FALSE(work->wait_for(0ns));
      waits = true;
      waits.notify_all();
      EXPECT_EQ(work->wait()->outcome, Outcome::kAborted);
    }
    waits.wait(false);
    current.abort(1);
    EXPECT_TRUE(current.now().aborted);
    EXPECT_EQ(barrier(team).run()->outcome, Outcome::kAborted);
    (void)current.begin(2);
    EXPECT_FALSE(current.now().aborted);
    expect_done(barrier(team));
    ++works_again;
  });
  EXPECT_EQ(works_again, 2);
}

TEST(CurrentGeneration, EndsATeamThatIsBeingFormed) {
  TestJob job(3);
  const Current current = current_of(job);
  (void)current->begin(1);
  auto team = *Team::open(current, 0, 3, std::vector<Rank>{0, 1}, "some", "test-");
  const auto work = barrier(*team).start();
  const std::string folder = cat(job.base().directory, "/test-some");
  while (!std::filesystem::exists(folder) || std::filesystem::is_empty(folder)) {
    std::this_thread::yield();  // Once the segment's file is there, rank 0 waits for rank 1.
  }
  current->abort(1);
  const auto verdict = work->wait();
  ASSERT_TRUE(verdict) << verdict.error().what;
  EXPECT_EQ(verdict->outcome, Outcome::kAborted);
}

TEST(CurrentGeneration, EndsTheFormingOfTheWorldsGroupAndTheGroup) {
  TestJob job(1);
  const Current current = current_of(job);
  const std::stop_token first = current->begin(1);
  EXPECT_FALSE(first.stop_requested());
  current->abort(1);
  EXPECT_TRUE(first.stop_requested());
  const std::shared_ptr<Group> late = job.join(0);
  current->formed(late);
  EXPECT_TRUE(late->aborted());
  current->abort(3);  // An abort of a generation that this process does not know yet.
  EXPECT_TRUE(current->begin(2).stop_requested());
  EXPECT_EQ(current->now().world, nullptr);
  EXPECT_TRUE(current->wait_for_abort(3));
  EXPECT_FALSE(current->wait_for_abort(4));
  EXPECT_FALSE(current->begin(4).stop_requested());
  job.base().generation = 4;
  const std::shared_ptr<Group> group = job.join(0);
  current->formed(group);
  current->abort(3);
  EXPECT_FALSE(group->aborted());
  current->abort(4);
  EXPECT_TRUE(group->aborted());
}

}  // namespace
}  // namespace holdfast::collective
