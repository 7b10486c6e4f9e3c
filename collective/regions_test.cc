// Regions: memory that each rank registers for itself, and all_reduce() in it.
#include "collective/regions.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <fstream>
#include <numeric>

#include "base/rounds_for_test.h"
#include "collective/test_job.h"

namespace holdfast::collective {
namespace {

constexpr std::size_t kPageSize = 4096;

std::shared_ptr<Regions> regions_of(const TestJob& job, int rank) {
  return std::make_shared<Regions>(job.options(rank).directory, rank);
}

// A private mapping, like the memory that a framework gives to Regions::add().
class Given {
 public:
  explicit Given(std::size_t bytes) : bytes_(bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HF_ASSERT(at != MAP_FAILED);
    data_ = static_cast<std::byte*>(at);
  }
  ~Given() { ::munmap(data_, bytes_); }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

std::vector<std::string> region_files(const TestJob& job) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(job.options(0).directory)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("sums-")) found.push_back(entry.path());
  }
  return found;
}

// The memory of the group's segment in this process, in KiB: only pages that were written count.
std::size_t segment_kilobytes(const TestJob& job) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" VmFlags") == 0 || line.find('-') < line.find(' ')) {
      inside = line.find(job.options(0).directory + "/group-") != std::string::npos;
    }
    if (inside && line.starts_with("Rss:")) return std::stoul(line.substr(4));
  }
  ADD_FAILURE() << "the group's segment is not mapped";
  return 0;
}

// Like TestJob::run(), but the ranks keep their regions from one group to the next.
void run_ranks(TestJob& job, const std::vector<std::shared_ptr<Regions>>& regions,
               const std::function<void(Group&, Regions&)>& body) {
  {
    std::vector<std::jthread> threads;
    for (std::size_t k = 0; k < regions.size(); ++k) {
      threads.emplace_back([&, k] {
        Group::Options options = job.options(static_cast<int>(k));
        options.regions = regions[k];
        auto group = Group::join(options);
        ASSERT_TRUE(group) << group.error().what;
        body(**group, *regions[k]);
      });
    }
  }
  ++job.base().generation;
}

std::vector<std::shared_ptr<Regions>> regions_of_all(const TestJob& job, int ranks) {
  std::vector<std::shared_ptr<Regions>> regions;
  for (int k = 0; k < ranks; ++k) regions.push_back(regions_of(job, k));
  return regions;
}

template <class T>
std::span<T> view(std::span<std::byte> bytes, std::size_t offset, std::size_t count) {
  return {reinterpret_cast<T*>(bytes.data() + offset), count};
}

// ---- what is registered -------------------------------------------------------------------------

TEST(Regions, TakesGivenPagesOverInPlaceAndGivesThemBack) {
  const TestJob job(1);
  Regions regions(job.options(0).directory, 0);
  const Given given(4 * kPageSize);
  std::memset(given.data(), 7, 4 * kPageSize);
  {
    const auto region = regions.add(given.data(), 3 * kPageSize + 5);
    ASSERT_TRUE(region) << region.error().what;
    EXPECT_EQ((*region)->bytes().data(), given.data());
    EXPECT_EQ((*region)->bytes().size(), 3 * kPageSize + 5);
    EXPECT_EQ(given.data()[4 * kPageSize - 1], std::byte{7});
    given.data()[1] = std::byte{8};
    const auto opened = regions.open((*region)->id());
    ASSERT_TRUE(opened) << opened.error().what;
    EXPECT_EQ((*opened)->bytes()[1], std::byte{8});
    (*opened)->bytes()[2] = std::byte{9};
    EXPECT_EQ(given.data()[2], std::byte{9});
    EXPECT_EQ(regions.address_of(given.data() + 5, 10).offset, 5U);
    EXPECT_EQ(regions.address_of(given.data() + 3 * kPageSize, 5).region, (*region)->id());
    EXPECT_EQ(regions.address_of(given.data() + 3 * kPageSize, 6).region, 0U);
    EXPECT_EQ(regions.address_of(given.data() - 1, 2).region, 0U);
    regions.remove(**region);
    EXPECT_EQ(regions.address_of(given.data(), 1).region, 0U);
  }
  EXPECT_TRUE(region_files(job).empty());
  EXPECT_EQ(given.data()[2], std::byte{9});
  given.data()[3] = std::byte{10};
  EXPECT_TRUE(regions.add(given.data(), kPageSize)) << "given back, so that it can be given again";
}

TEST(Regions, RefusesWhatCanNotBeSharedAndChangesNothing) {
  const TestJob job(1);
  Regions regions(job.options(0).directory, 0);
  const Given given(4 * kPageSize);
  EXPECT_EQ(regions.add(given.data() + 64, 100).error().blame, Blame::kUser);
  EXPECT_EQ(regions.add(nullptr, 0).error().blame, Blame::kUser);
  EXPECT_EQ(regions.add(nullptr, ~std::size_t{0}).error().blame, Blame::kUser);
  EXPECT_EQ(regions.add(nullptr, std::size_t{1} << 45).error().blame, Blame::kWorld);
  ASSERT_EQ(::mprotect(given.data() + kPageSize, kPageSize, PROT_NONE), 0);
  EXPECT_EQ(regions.add(given.data(), 3 * kPageSize).error().blame, Blame::kUser);
  ASSERT_EQ(::mprotect(given.data() + kPageSize, kPageSize, PROT_READ | PROT_WRITE), 0);
  EXPECT_TRUE(region_files(job).empty());
  const auto region = regions.add(given.data() + kPageSize, 10);
  ASSERT_TRUE(region);
  EXPECT_NE(regions.add(given.data(), kPageSize + 1).error().what.find("registered"),
            std::string::npos);
  EXPECT_TRUE(regions.add(given.data(), kPageSize));
}

TEST(Regions, ASuccessorRemovesWhatItsPredecessorLeftAndNoMore) {
  const TestJob job(2);
  const auto other = regions_of(job, 1);
  const auto theirs = other->add(nullptr, 100);
  const auto before = regions_of(job, 0);
  const auto left = before->add(nullptr, 100);  // Left behind, as if the process had been killed.
  ASSERT_TRUE(theirs && left);
  EXPECT_EQ(region_files(job).size(), 2U);
  const auto successor = regions_of(job, 0);
  EXPECT_EQ(region_files(job).size(), 1U);
  EXPECT_TRUE(successor->open((*theirs)->id()));
  EXPECT_FALSE(successor->open((*left)->id()));
}

TEST(Regions, NewMemoryIsFreedAtItsEndThoughOthersHaveItMapped) {
  const TestJob job(1);
  Regions regions(job.options(0).directory, 0);
  auto region = *regions.add(nullptr, 100);
  const auto opened = *regions.open(region->id());
  region->bytes()[1] = std::byte{8};
  EXPECT_EQ(opened->bytes()[1], std::byte{8});
  region.reset();
  EXPECT_EQ(opened->bytes()[1], std::byte{0});
}

TEST(Regions, AForkedChildLeavesThemToItsParent) {
  const TestJob job(1);
  Regions regions(job.options(0).directory, 0);
  auto region = *regions.add(nullptr, 100);
  const pid_t child = ::fork();
  if (child == 0) {
    region.reset();
    ::_exit(0);
  }
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(regions.open(region->id()));
}

// ---- sums ---------------------------------------------------------------------------------------

TEST(Regions, ASumInThemStagesNothingWhereverTheyLie) {
  constexpr std::size_t kCount = 100'000;
  for (const int ranks : {2, 3}) {
    TestJob job(ranks);
    const auto regions = regions_of_all(job, ranks);
    std::barrier together(ranks);
    std::vector<std::size_t> shown(2);
    run_ranks(job, regions, [&](Group& group, Regions& mine) {
      const auto me = static_cast<std::size_t>(group.rank());
      const auto small = mine.add(nullptr, 100);
      const auto region = mine.add(nullptr, (kCount + me) * sizeof(float));
      ASSERT_TRUE(small && region);
      const auto numbers = view<float>((*region)->bytes(), me * sizeof(float), kCount);
      std::vector<float> from(kCount);
      const auto expect = reference_sum<float>(ranks, kCount, 5);
      for (int i = 0; i < 3; ++i) {
        fill(std::span(from), group.rank(), 5);
        if (i != 0) fill(numbers, group.rank(), 5);
        const auto* source = reinterpret_cast<std::byte*>(i == 0 ? from.data() : numbers.data());
        ASSERT_EQ(group.all_reduce(numbers, source), Outcome::kDone);
        EXPECT_TRUE(same_bits<float>(numbers, expect)) << i;
      }
      fill(numbers, group.rank(), 5);
      EXPECT_EQ(group.all_reduce(numbers), Outcome::kDone);
      EXPECT_TRUE(same_bits<float>(numbers, expect));
      together.arrive_and_wait();
      if (me == 0) shown[0] = segment_kilobytes(job);
      together.arrive_and_wait();
      if (me == 0) mine.remove(**region);
      fill(numbers, group.rank(), 5);
      EXPECT_EQ(group.all_reduce(numbers), Outcome::kDone);
      EXPECT_TRUE(same_bits<float>(numbers, expect));
      together.arrive_and_wait();
      if (me == 0) shown[1] = segment_kilobytes(job);
      together.arrive_and_wait();
      mine.remove(**region);
      mine.remove(**small);
    });
    EXPECT_LT(shown[0], 128U);
    EXPECT_GT(shown[1], 256U) << "one rank had none: this should have gone through the windows";
  }
}

TEST(Regions, ASumGoesThroughTheWindowsWhereARankCanNotMapThoseOfAnother) {
  TestJob job(3);
  const auto regions = regions_of_all(job, 3);
  std::barrier together(3);
  run_ranks(job, regions, [&](Group& group, Regions& mine) {
    const auto region = mine.add(nullptr, 40'000);
    ASSERT_TRUE(region);
    const auto numbers = view<float>((*region)->bytes(), 0, 10'000);
    together.arrive_and_wait();
    if (group.rank() == 0) std::filesystem::remove(region_files(job).front());
    together.arrive_and_wait();
    for (int i = 0; i < 3; ++i) {
      fill(numbers, group.rank(), 6);
      ASSERT_EQ(group.all_reduce(numbers), Outcome::kDone);
      EXPECT_TRUE(same_bits<float>(numbers, reference_sum<float>(3, 10'000, 6)));
    }
    // A second region of the same rank works like the first.
    const auto second = mine.add(nullptr, 40'000);
    ASSERT_TRUE(second);
    const auto others = view<float>((*second)->bytes(), 0, 10'000);
    fill(others, group.rank(), 6);
    ASSERT_EQ(group.all_reduce(others), Outcome::kDone);
    EXPECT_TRUE(same_bits<float>(others, reference_sum<float>(3, 10'000, 6)));
    mine.remove(**region);
    mine.remove(**second);
  });
}

TEST(Regions, RanksThatAskForDifferentSizesAreToldSo) {
  TestJob job(2);
  const auto regions = regions_of_all(job, 2);
  run_ranks(job, regions, [&](Group& group, Regions& mine) {
    const auto region = mine.add(nullptr, 4000);
    ASSERT_TRUE(region);
    const auto numbers = view<float>((*region)->bytes(), 0, group.rank() == 0 ? 10 : 11);
    EXPECT_EQ(group.all_reduce(numbers), Outcome::kMismatch);
    EXPECT_NE(group.why().find("rank 1 for an all-reduce of 44 bytes"), std::string::npos)
        << group.why();
    mine.remove(**region);
  });
}

// One rank's memory of all kinds. For each sum it draws one of them at random.
class Drawer {
 public:
  Drawer(Regions& regions, int rank) : regions_(regions), rank_(rank) {}
  ~Drawer() {
    for (const auto& region : mine_) regions_.remove(*region);
  }
  // A sum that all ranks make. Its numbers depend on `seed`; their memory on the rank as well.
  template <class T>
  Outcome sum(Group& group, std::uint64_t seed, bool& right) {
    constexpr std::size_t kMost = 60'000;
    const std::size_t sizes[] = {0, 1, 7, 1000, derive(seed, 1) % kMost};
    const std::size_t count = sizes[derive(seed, 2) % 5];
    const std::span<std::byte> memory = draw(derive(seed, 3, rank_), (kMost + 8) * sizeof(T));
    const std::size_t at = derive(seed, 4, rank_) % 8 * sizeof(T);
    const auto numbers = view<T>(memory, at, count);
    std::vector<T> from(count);
    fill(std::span(from), rank_, seed);
    const bool apart = derive(seed, 5, rank_) % 2 == 0;
    if (!apart) std::copy(from.begin(), from.end(), numbers.begin());
    const auto* source = reinterpret_cast<std::byte*>(apart ? from.data() : numbers.data());
    const Outcome o = group.all_reduce(numbers, source);
    right = o != Outcome::kDone ||
            same_bits<T>(numbers, reference_sum<T>(group.world_size(), count, seed));
    return o;
  }

 private:
  std::span<std::byte> draw(std::uint64_t chance, std::size_t bytes) {
    const std::uint64_t kind = chance % 16;
    if (kind == 0 && !mine_.empty()) {
      regions_.remove(*mine_.front());
      mine_.erase(mine_.begin());
    }
    if (kind == 1 || (mine_.empty() && kind > 4)) {
      auto region = regions_.add(nullptr, std::size_t{1} << 20);
      HF_ASSERT(region);
      mine_.push_back(*region);
    }
    if (kind < 4 || mine_.empty()) {
      private_.resize(bytes);
      return private_;
    }
    return mine_[chance / 16 % mine_.size()]->bytes();
  }
  Regions& regions_;
  int rank_;
  std::vector<std::shared_ptr<Region>> mine_;
  std::vector<std::byte> private_;
};

TEST(Regions, SumsAreRightWhateverEachRankHasRegisteredWhenAbortRaces) {
  for (const int ranks : {1, 2, 3, 5}) {
    TestJob job(ranks);
    job.base().window_bytes = std::size_t{64} << 10;
    const auto regions = regions_of_all(job, ranks);
    for (std::uint64_t round = 0; round < rounds(20); ++round) {
      std::vector<std::uint64_t> done(static_cast<std::size_t>(ranks));
      run_ranks(job, regions, [&](Group& group, Regions& mine) {
        const auto me = static_cast<std::size_t>(group.rank());
        Drawer drawer(mine, group.rank());
        const std::uint64_t until = 30 + derive(8, round) % 30;
        for (std::uint64_t i = 0;; ++i) {
          if (me == i % static_cast<std::size_t>(ranks) && i == until) group.abort();
          bool right = false;
          const std::uint64_t seed = derive(9, round, i);
          const Outcome o = derive(seed, 0) % 2 == 0 ? drawer.sum<float>(group, seed, right)
                                                     : drawer.sum<std::int64_t>(group, seed, right);
          ASSERT_TRUE(right) << ranks << " ranks, round " << round << ", sum " << i;
          if (o != Outcome::kDone) break;
          ++done[me];
        }
      });
      for (const std::uint64_t count : done) EXPECT_EQ(count, done[0]);
      EXPECT_GE(done[0], 29U);
    }
    EXPECT_TRUE(region_files(job).empty());
  }
}

}  // namespace
}  // namespace holdfast::collective
