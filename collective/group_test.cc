// Groups on one host, except for sums: abort, mismatch, leaving, order.
#include "collective/group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

#include "base/rounds_for_test.h"
#include "collective/test_job.h"

namespace holdfast::collective {
namespace {

std::span<float> floats(Group& group, std::size_t count) {
  return {reinterpret_cast<float*>(group.registered().data()), count};
}

// ---- abort --------------------------------------------------------------------------------------

TEST(Group, RanksAgreeOnEveryOperationWhenAbortRaces) {
  constexpr int kRanks = 3;
  TestJob job(kRanks, 1 << 20);
  int in_the_midst = 0;
  for (std::uint64_t round = 0; round < rounds(150); ++round) {
    std::vector<std::uint64_t> done(kRanks);
    std::vector<std::uint64_t> begun(kRanks);
    job.run([&](Group& group) {
      const auto me = static_cast<std::size_t>(group.rank());
      const std::span<float> numbers = floats(group, 1 + derive(3, round) % 100'000);
      std::vector<float> own(20'000);
      std::jthread aborter;
      if (me == 0) {
        aborter = std::jthread([&group, round] {
          for (std::uint64_t i = derive(4, round) % 200; i > 0; --i) std::this_thread::yield();
          group.abort();
        });
      }
      for (Outcome o = Outcome::kDone; o == Outcome::kDone;) {
        ++begun[me];
        switch (begun[me] % 3) {
          case 0:
            o = group.all_reduce(numbers);
            break;
          case 1:
            o = group.barrier();
            break;
          default:
            o = group.all_reduce(std::span(own));
            break;
        }
        if (o == Outcome::kDone)
          ++done[me];
        else
          EXPECT_EQ(o, Outcome::kAborted);
      }
      // Later calls must not disturb ranks that have not noticed the abort yet.
      for (int i = 0; i < 4; ++i) EXPECT_EQ(group.barrier(), Outcome::kAborted);
    });
    for (std::size_t k = 0; k < kRanks; ++k) {
      EXPECT_EQ(done[k], done[0]) << "round " << round << ", rank " << k;
      EXPECT_GE(begun[k], done[0]) << "an operation was done without rank " << k;
    }
    in_the_midst += done[0] > 0 ? 1 : 0;
  }
  EXPECT_GT(in_the_midst, 0) << "no abort came in the midst: the test has tested nothing";
}

TEST(Group, AbortEndsTheWaitOfAllRanks) {
  TestJob job(3, 4096);
  std::atomic<int> waiting{0};
  job.run([&](Group& group) {
    if (group.rank() == 2) {
      while (waiting < 2) std::this_thread::yield();
      group.abort();
      return;
    }
    std::vector<float> own(10);
    ++waiting;
    EXPECT_EQ(group.all_reduce(std::span(own)), Outcome::kAborted);
    EXPECT_EQ(group.all_reduce(floats(group, 5)), Outcome::kAborted);
    EXPECT_TRUE(group.aborted());
    EXPECT_EQ(group.why(), "");
  });
}

// ---- mismatch -----------------------------------------------------------------------------------

// Every rank calls `body`. All must get kMismatch with the same sentence, which is returned.
std::string mismatch_of(TestJob& job, const std::function<Outcome(Group&)>& body) {
  std::mutex mutex;
  std::set<std::string> sentences;
  job.run([&](Group& group) {
    EXPECT_EQ(body(group), Outcome::kMismatch);
    EXPECT_EQ(group.barrier(), Outcome::kMismatch) << "a mismatch must be final";
    const std::lock_guard lock(mutex);
    sentences.insert(group.why());
  });
  EXPECT_EQ(sentences.size(), 1U);
  return *sentences.begin();
}

TEST(Mismatch, OfOpsAndOfTypesIsNamed) {
  TestJob job(2);
  std::vector<std::string> whys(2);
  job.run([&](Group& group) {
    std::vector<float> own(10);
    const bool first = group.rank() == 0;
    EXPECT_EQ(group.all_reduce({own.data(), 10, first ? Element::kFloat32 : Element::kInt32},
                               std::as_bytes(std::span(own)).data(), first ? Op::kMin : Op::kMax),
              Outcome::kMismatch);
    whys[static_cast<std::size_t>(group.rank())] = group.why();
  });
  EXPECT_EQ(whys[0],
            "rank 0 asked for an all-reduce of 40 bytes (minimum of float32) anywhere in memory "
            "(operation 1), rank 1 for an all-reduce of 40 bytes (maximum of int32) anywhere in "
            "memory (operation 1); all ranks must call the same operations in the same order");
  EXPECT_EQ(whys[1], whys[0]);
}

TEST(Mismatch, OfNumbersThatCanNotBeReducedIsNamed) {
  TestJob job(2);
  job.run([&](Group& group) {
    std::vector<float> own(10);
    EXPECT_EQ(group.all_reduce({own.data(), 10, Element::kFloat32, static_cast<Location>(9)}),
              Outcome::kMismatch);
    EXPECT_NE(group.why().find("which can not be reduced so or lies where nobody reaches it"),
              std::string::npos)
        << group.why();
  });
}

TEST(Mismatch, OfSizesNamesTheRanksAndWhatEachAskedFor) {
  TestJob job(3, 4096);
  EXPECT_EQ(
      mismatch_of(job,
                  [](Group& g) {
                    EXPECT_EQ(g.barrier(), Outcome::kDone);
                    const auto numbers = floats(g, g.rank() == 1 ? 20 : 10);
                    fill(numbers, 0, 1);
                    const std::vector<float> before(numbers.begin(), numbers.end());
                    const Outcome o = g.all_reduce(numbers);
                    EXPECT_TRUE(same_bits<float>(numbers, before));
                    return o;
                  }),
      "ranks 0, 2 asked for an all-reduce of 40 bytes of float32 at byte 0 (operation 2), rank 1 "
      "for an all-reduce of 80 bytes of float32 at byte 0 (operation 2); all ranks must call "
      "the same operations in the same order");
}

TEST(Mismatch, OfKindsTypesOffsetsAndRootsIsSeen) {
  TestJob job(2, 4096);
  EXPECT_NE(mismatch_of(job,
                        [](Group& g) {
                          std::vector<float> own(10);
                          return g.rank() == 0 ? g.barrier() : g.all_reduce(std::span(own));
                        })
                .find("rank 0 asked for a barrier"),
            std::string::npos);
  mismatch_of(job, [](Group& g) {
    std::vector<float> f(10);
    std::vector<double> d(5);
    return g.rank() == 0 ? g.all_reduce(std::span(f)) : g.all_reduce(std::span(d));
  });
  mismatch_of(job, [](Group& g) {
    return g.all_reduce(floats(g, 10).subspan(static_cast<std::size_t>(g.rank()), 5));
  });
  mismatch_of(job, [](Group& g) {
    std::vector<std::byte> bytes(10);
    return g.broadcast(bytes, g.rank());
  });
}

TEST(Mismatch, CoversWhatNoRankCanBeServedWith) {
  TestJob job(2, 4096);
  mismatch_of(job, [](Group& g) {
    std::vector<std::byte> bytes(10);
    return g.broadcast(bytes, 2);
  });
  mismatch_of(job, [](Group& g) {
    std::vector<std::byte> bytes(10);
    return g.all_gather(bytes, bytes);
  });
}

// ---- leaving ------------------------------------------------------------------------------------

TEST(Group, WaitingForAMemberThatLeftSaysWhoLeft) {
  TestJob job(3, 4096);
  std::atomic<int> told{0};
  job.run([&told](Group& group) {
    EXPECT_EQ(group.barrier(), Outcome::kDone);
    if (group.rank() == 2) {
      group.leave();
      group.leave();
      return;
    }
    EXPECT_EQ(group.all_reduce(floats(group, 10)), Outcome::kLeft);
    EXPECT_EQ(group.why(),
              cat("rank 2 has ended training and will not come to what rank ", group.rank(),
                  " asked for: an all-reduce of 40 bytes of float32 at "
                  "byte 0 (operation 2)"));
    EXPECT_EQ(group.barrier(), Outcome::kLeft);
    ++told;
    while (told < 2) std::this_thread::yield();  // To end before would be leaving, too.
  });
}

TEST(Group, LeavingTakesNothingBackThatWasComplete) {
  TestJob job(3);
  for (int round = 0; round < 50; ++round) {
    job.run([](Group& group) {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(group.barrier(), Outcome::kDone) << group.why();
      group.leave();
    });
  }
}

}  // namespace
}  // namespace holdfast::collective
