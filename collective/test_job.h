// TestJob: a directory with an arena file per rank, and threads that are the ranks of a group.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "base/text.h"
#include "collective/group.h"

namespace holdfast::collective {

// Every rank joins and does `body` in a thread of its own.
inline void run_ranks(int count, const std::function<std::unique_ptr<Group>(int rank)>& join,
                      const std::function<void(Group&)>& body) {
  std::vector<std::jthread> threads;
  for (int k = 0; k < count; ++k) {
    threads.emplace_back([&, k] {
      if (const auto group = join(k)) body(*group);
    });
  }
}

class TestJob {
 public:
  explicit TestJob(int world_size, std::uint64_t arena_bytes = 0) {
    char name[] = "/dev/shm/holdfast-collective-XXXXXX";
    HF_ASSERT(::mkdtemp(name) != nullptr);
    base_.directory = name;
    base_.generation = 1;
    base_.run_id = 77;
    base_.world_size = world_size;
    base_.registered.bytes = arena_bytes;
    for (int k = 0; k < world_size && arena_bytes != 0; ++k) {
      base_.registered.files.push_back(cat(base_.directory, "/arena-", k));
      const int fd = ::open(base_.registered.files.back().c_str(), O_CREAT | O_RDWR, 0600);
      HF_ASSERT(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(arena_bytes + (1U << 16))) == 0);
      ::close(fd);
    }
  }
  ~TestJob() { std::filesystem::remove_all(base_.directory); }
  TestJob(const TestJob&) = delete;
  TestJob& operator=(const TestJob&) = delete;

  // What all ranks share; may be changed between groups.
  Group::Options& base() { return base_; }
  [[nodiscard]] Group::Options options(int rank) const {
    Group::Options o = base_;
    o.rank = rank;
    return o;
  }
  [[nodiscard]] std::unique_ptr<Group> join(int rank) const {
    auto group = Group::join(options(rank));
    if (group) return *std::move(group);
    ADD_FAILURE() << group.error().what;
    return nullptr;
  }
  // Every rank joins and does `body` in a thread of its own, under the next generation.
  void run(const std::function<void(Group&)>& body) {
    run_ranks(
        base_.world_size, [this](int rank) { return join(rank); }, body);
    ++base_.generation;
  }
  // The names of the group's files that are there.
  [[nodiscard]] std::vector<std::string> segments() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(base_.directory)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("group-")) found.push_back(name);
    }
    return found;
  }

 private:
  Group::Options base_;
};

// Fills a rank's buffer. Magnitudes differ so much that the order of a sum shows in its bits.
template <class T>
void fill(std::span<T> out, int rank, std::uint64_t seed) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t bits = derive(seed, rank, i);
    const auto number = static_cast<std::int32_t>(bits >> 32);
    if constexpr (std::is_floating_point_v<T>) {
      out[i] = static_cast<T>(number) * static_cast<T>(1U << (bits & 15));
    } else {
      out[i] = static_cast<T>(static_cast<std::make_unsigned_t<T>>(bits));
    }
  }
}

// ((r0 + r1) + r2) + ..., the plainest way.
template <class T>
std::vector<T> reference_sum(int world_size, std::size_t count, std::uint64_t seed) {
  std::vector<T> sum(count);
  std::vector<T> row(count);
  fill(std::span(sum), 0, seed);
  for (int k = 1; k < world_size; ++k) {
    fill(std::span(row), k, seed);
    for (std::size_t i = 0; i < count; ++i) {
      if constexpr (std::is_floating_point_v<T>) {
        sum[i] = sum[i] + row[i];
      } else {
        using Wraps = std::make_unsigned_t<T>;
        sum[i] = static_cast<T>(static_cast<Wraps>(sum[i]) + static_cast<Wraps>(row[i]));
      }
    }
  }
  return sum;
}

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace holdfast::collective
