// Sums equal the rank-order reference bit for bit, whatever the path, size, alignment and type.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "collective/reduce.h"
#include "collective/test_job.h"

namespace holdfast::collective {
namespace {

constexpr std::size_t kBig = (std::size_t{1} << 20) + 3;
const std::vector<std::size_t> kCounts = {0, 1, 3, 1000, 8191, 8192, 8193, kBig};

template <class T>
std::span<T> part(std::span<std::byte> memory, std::size_t skip, std::size_t count) {
  return {reinterpret_cast<T*>(memory.data()) + skip, count};
}

template <class T>
void expect_sums(TestJob& job, const std::vector<std::size_t>& counts, bool registered) {
  for (const std::size_t count : counts) {
    const std::vector<T> want = reference_sum<T>(job.base().world_size, count, count);
    for (const std::size_t skip : {std::size_t{0}, std::size_t{1}}) {
      job.run([&](Group& group) {
        std::vector<T> own(count + skip);
        const std::span<T> numbers =
            registered ? part<T>(group.registered(), skip, count) : std::span(own).subspan(skip);
        fill(numbers, group.rank(), count);
        EXPECT_EQ(group.all_reduce(numbers), Outcome::kDone) << group.why();
        EXPECT_TRUE(same_bits<T>(numbers, want))
            << "rank " << group.rank() << " of " << group.world_size() << ", " << count
            << " elements from the " << skip << "th, registered: " << registered;
      });
    }
  }
}

class SumOfRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(WorldSizes, SumOfRanks, testing::Range(1, 9));

TEST_P(SumOfRanks, RegisteredEqualsTheRankOrderReference) {
  TestJob job(GetParam(), (kBig + 1) * sizeof(float));
  expect_sums<float>(job, kCounts, true);
}

TEST_P(SumOfRanks, AnywhereEqualsTheRankOrderReference) {
  TestJob job(GetParam());
  expect_sums<float>(job, kCounts, false);
}

TEST_P(SumOfRanks, AnywhereThroughSmallWindowsIsTheSame) {
  TestJob job(GetParam());
  job.base().window_bytes = 16384;  // Halves of 8 KiB: smaller than the small path's 32 KiB.
  expect_sums<float>(job, {1000, 2048, 2049, 50'001}, false);
}

// Full pieces of a sum use one half of the window; a shorter last piece and the next sum use the
// other half. A rank that is ahead must not write where others still read.
TEST_P(SumOfRanks, AnywhereOneAfterAnotherOfWholePiecesAndRestsAreTheSame) {
  TestJob job(GetParam());
  job.base().window_bytes = 16384;  // Pieces of 2048 floats.
  const std::vector<std::size_t> counts = {20'480, 20'481, 8192, 40'960, 20'479, 2049, 4096};
  std::vector<std::vector<float>> want;
  for (const std::size_t count : counts) {
    want.push_back(reference_sum<float>(GetParam(), count, count));
  }
  job.run([&](Group& group) {
    for (std::size_t i = 0; i < 3 * counts.size(); ++i) {
      const std::size_t k = i % counts.size();
      std::vector<float> numbers(counts[k]);
      fill(std::span(numbers), group.rank(), counts[k]);
      ASSERT_EQ(group.all_reduce(std::span(numbers)), Outcome::kDone) << group.why();
      ASSERT_TRUE(same_bits<float>(numbers, want[k])) << "rank " << group.rank() << ", sum " << i;
    }
  });
}

TEST_P(SumOfRanks, AnywhereOutOfOtherMemoryLeavesThatAsItWas) {
  TestJob job(GetParam());
  job.base().window_bytes = 65'536;
  for (const std::size_t count : {std::size_t{0}, std::size_t{7}, std::size_t{50'001}}) {
    const std::vector<float> want = reference_sum<float>(GetParam(), count, count);
    job.run([&](Group& group) {
      std::vector<float> from(count);
      fill(std::span(from), group.rank(), count);
      const std::vector<float> before = from;
      std::vector<float> to(count, -1.0F);
      // Only rank 0 sums in place: each rank may choose for itself.
      const std::span<float> sum(group.rank() == 0 ? from : to);
      EXPECT_EQ(group.all_reduce(sum, reinterpret_cast<const std::byte*>(from.data())),
                Outcome::kDone);
      EXPECT_TRUE(same_bits<float>(sum, want)) << "rank " << group.rank() << ", " << count;
      EXPECT_TRUE(group.rank() == 0 || same_bits<float>(from, before)) << "rank " << group.rank();
    });
  }
}

TEST_P(SumOfRanks, EveryTypeIsSummed) {
  TestJob job(GetParam(), 200'000);
  for (const bool registered : {true, false}) {
    expect_sums<double>(job, {5, 20'001}, registered);
    expect_sums<std::int32_t>(job, {5, 20'001}, registered);
    expect_sums<std::int64_t>(job, {5, 20'001}, registered);
  }
}

// A sum of this size is written past the caches if `to` is aligned for it.
TEST(Sum, MuchOutOfOtherMemoryIsTheSameWhereverItLies) {
  constexpr std::size_t kMuch = kBig + 5;
  for (const int ranks : {2, 3}) {  // Two ranks sum everything each; three sum a share each.
    TestJob job(ranks);
    const std::vector<float> want = reference_sum<float>(ranks, kMuch, 3);
    job.run([&](Group& group) {
      std::vector<float> from(kMuch);
      fill(std::span(from), group.rank(), 3);
      for (const std::size_t skip : {0U, 1U, 4U}) {
        std::vector<float> to(skip + kMuch + 1, -1.0F);
        const std::span<float> sum = std::span(to).subspan(skip, kMuch);
        EXPECT_EQ(group.all_reduce(sum, reinterpret_cast<const std::byte*>(from.data())),
                  Outcome::kDone);
        EXPECT_TRUE(same_bits<float>(sum, want)) << "rank " << group.rank() << ", from " << skip;
        EXPECT_EQ(to.back(), -1.0F);
        EXPECT_TRUE(skip == 0 || to[skip - 1] == -1.0F);
      }
    });
  }
}

TEST(Sum, TheTestsNumbersTellTheOrderOfSumming) {
  std::vector<float> a(1000);
  std::vector<float> b(1000);
  std::vector<float> c(1000);
  fill(std::span(a), 0, 1);
  fill(std::span(b), 1, 1);
  fill(std::span(c), 2, 1);
  for (std::size_t i = 0; i < 1000; ++i) a[i] = a[i] + (b[i] + c[i]);
  EXPECT_FALSE(same_bits<float>(a, reference_sum<float>(3, 1000, 1)));
}

TEST(Sum, ManyInARowOfChangingSizeAndPathStayRight) {
  TestJob job(3, 1 << 20);
  job.base().window_bytes = 65'536;
  job.run([&](Group& group) {
    Prng prng(5);  // The same in all ranks.
    for (std::uint64_t i = 0; i < 150; ++i) {
      const std::size_t count = prng.below(40'000);
      std::vector<float> own(count);
      const bool registered = prng.below(2) == 0;
      const auto numbers =
          registered ? part<float>(group.registered(), prng.below(1000), count) : std::span(own);
      fill(numbers, group.rank(), i);
      ASSERT_EQ(group.all_reduce(numbers), Outcome::kDone);
      ASSERT_TRUE(same_bits<float>(numbers, reference_sum<float>(3, count, i))) << i;
    }
  });
}

TEST(Sum, WorksAtTheCallersOwnAddressesAndAtAnOddOffsetOfTheFile) {
  TestJob job(2, 10'000);
  job.base().registered.offset = 8 * 13;
  const std::vector<float> want = reference_sum<float>(2, 1001, 9);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Group::Options options = job.options(rank);
      const int fd = ::open(options.registered.files[std::size_t(rank)].c_str(), O_RDWR);
      void* base = ::mmap(nullptr, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      ::close(fd);
      ASSERT_NE(base, MAP_FAILED);
      options.registered.memory = static_cast<std::byte*>(base) + options.registered.offset;
      auto group = Group::join(options);
      ASSERT_TRUE(group) << group.error().what;
      EXPECT_EQ((*group)->registered().data(), options.registered.memory);
      const auto numbers = part<float>({options.registered.memory, 10'000}, 7, 1001);
      fill(numbers, rank, 9);
      // Rank r's fill must not race the other ranks' sum through their own mapping of it. The first
      // barrier of all_reduce() is enough for that.
      EXPECT_EQ((*group)->all_reduce(numbers), Outcome::kDone);
      EXPECT_TRUE(same_bits<float>(numbers, want));
      ::munmap(base, 16384);
    });
  }
}

// Many more ranks than the library's constants were tuned for, on every path of a reduction.
TEST(Sum, OfTwoHundredRanksIsTheSameByEveryPath) {
  constexpr int kRanks = 200;
  constexpr std::size_t kCount = 5001;
  TestJob job(kRanks, kCount * sizeof(float));
  job.base().window_bytes = 16384;
  const std::vector<float> small = reference_sum<float>(kRanks, 40, 1);
  const std::vector<float> large = reference_sum<float>(kRanks, kCount, 2);
  job.run([&](Group& group) {
    const std::span<float> registered = part<float>(group.registered(), 0, kCount);
    std::vector<float> own(kCount);
    for (const bool is_registered : {true, false}) {
      const std::span<float> memory = is_registered ? registered : std::span(own);
      fill(memory.first(40), group.rank(), 1);
      ASSERT_EQ(group.all_reduce(memory.first(40)), Outcome::kDone);
      EXPECT_TRUE(same_bits<float>(memory.first(40), small)) << "rank " << group.rank();
      fill(memory, group.rank(), 2);
      ASSERT_EQ(group.all_reduce(memory), Outcome::kDone);
      EXPECT_TRUE(same_bits<float>(memory, large)) << "rank " << group.rank();
    }
    std::vector<std::int32_t> all(kRanks);
    const std::int32_t mine = group.rank();
    ASSERT_EQ(group.all_gather(std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all))),
              Outcome::kDone);
    for (int k = 0; k < kRanks; ++k) EXPECT_EQ(all[static_cast<std::size_t>(k)], k);
  });
}

// The result of all_reduce(), wherever the numbers lie, equals the reduction of all rows at once.
template <class T>
void expect_reduced_alike(Element element, Op op) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 30'001;
  TestJob job(kRanks, kCount * sizeof(T));
  job.base().window_bytes = 16384;
  const auto row_of = [](int rank, std::size_t count) {
    std::vector<T> row(count);
    fill(std::span(row), rank, 8);
    return row;
  };
  for (const std::size_t count : {std::size_t{5}, kCount}) {
    std::vector<std::vector<T>> rows;
    std::vector<const std::byte*> bytes;
    for (int k = 0; k < kRanks; ++k) rows.push_back(row_of(k, count));
    for (const auto& row : rows) bytes.push_back(std::as_bytes(std::span(row)).data());
    std::vector<T> want(count);
    reduce_rows(std::as_writable_bytes(std::span(want)).data(), bytes, count, {element, op});
    job.run([&](Group& group) {
      const std::vector<T> mine = row_of(group.rank(), count);
      const std::byte* from = std::as_bytes(std::span(mine)).data();
      std::vector<T> own(count);
      for (const std::span<T>& to : {part<T>(group.registered(), 0, count), std::span<T>(own)}) {
        ASSERT_EQ(group.all_reduce({to.data(), count, element}, from, op), Outcome::kDone);
        EXPECT_TRUE(same_bits<T>(to, want))
            << name_of(op) << " of " << count << " " << name_of(element);
      }
    });
  }
}

TEST(Reduction, OfAGroupIsThatOfItsRows) {
  expect_reduced_alike<float>(Element::kFloat32, Op::kAverage);
  expect_reduced_alike<double>(Element::kFloat64, Op::kMin);
  expect_reduced_alike<std::int32_t>(Element::kInt32, Op::kXor);
  expect_reduced_alike<std::int16_t>(Element::kFloat16, Op::kSum);
  expect_reduced_alike<std::int16_t>(Element::kBfloat16, Op::kAverage);
  expect_reduced_alike<std::int8_t>(Element::kInt8, Op::kProduct);
  expect_reduced_alike<std::int8_t>(Element::kBool, Op::kOr);
}

TEST(Reduction, OfNothingNeedsNoRegisteredMemory) {
  TestJob job(3);
  job.run([](Group& group) {
    EXPECT_EQ(group.all_reduce({nullptr, 0, Element::kFloat32}, nullptr), Outcome::kDone);
  });
  TestJob two(2);
  two.run([](Group& group) {
    EXPECT_EQ(group.all_reduce({nullptr, 0, Element::kInt8}, nullptr), Outcome::kDone);
  });
}

TEST(Reduction, OfOneRankAloneIsThatOfItsRow) {
  TestJob job(1, 4096);
  job.run([](Group& group) {
    for (const bool registered : {true, false}) {
      std::vector<std::uint8_t> own = {0, 1, 2, 255};
      const std::span<std::uint8_t> to =
          registered ? part<std::uint8_t>(group.registered(), 0, 4) : std::span(own);
      std::copy(own.begin(), own.end(), to.begin());
      ASSERT_EQ(
          group.all_reduce({to.data(), 4, Element::kBool}, std::as_bytes(to).data(), Op::kSum),
          Outcome::kDone);
      EXPECT_EQ(std::vector(to.begin(), to.end()), (std::vector<std::uint8_t>{0, 1, 1, 1}));
    }
  });
}

TEST(Broadcast, GivesEveryRankTheRootsBytes) {
  TestJob job(3);
  job.base().window_bytes = 16384;
  job.run([&](Group& group) {
    for (const std::size_t size : {0UL, 1UL, 5000UL, 30'000UL}) {
      for (int root = 0; root < 3; ++root) {
        std::vector<std::int32_t> got(size);
        std::vector<std::int32_t> want(size);
        fill(std::span(got), group.rank(), size);
        fill(std::span(want), root, size);
        EXPECT_EQ(group.broadcast(std::as_writable_bytes(std::span(got)), root), Outcome::kDone);
        EXPECT_EQ(got, want);
      }
    }
  });
}

TEST(AllGather, GivesEveryRankAllPartsInRankOrder) {
  TestJob job(3);
  job.base().window_bytes = 16384;
  job.run([&](Group& group) {
    for (const std::size_t size : {0UL, 1UL, 5000UL, 30'000UL}) {
      std::vector<std::int32_t> mine(size);
      fill(std::span(mine), group.rank(), size);
      std::vector<std::int32_t> all(3 * size);
      std::vector<std::int32_t> want(3 * size);
      for (int k = 0; k < 3; ++k)
        fill(std::span(want).subspan(std::size_t(k) * size, size), k, size);
      EXPECT_EQ(
          group.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))),
          Outcome::kDone);
      EXPECT_EQ(all, want);
    }
  });
}

}  // namespace
}  // namespace holdfast::collective
