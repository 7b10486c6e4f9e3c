#include "collective/tape.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "base/digest.h"

namespace holdfast::collective {
namespace {

struct Kept {
  ExchangeKind kind;
  std::uint64_t request;
  std::uint64_t given;
  std::vector<std::byte> got;
};

class MemoryTape final : public Tape {
 public:
  void record(const std::string& group, const Exchange& e) override {
    kept[group].push_back({e.kind, e.request, e.given, {e.got.begin(), e.got.end()}});
  }
  Outcome play(const std::string& group, const Exchange& e) override {
    const Kept& was = kept[group].at(next++);
    equal = equal && was.kind == e.kind && was.request == e.request && was.given == e.given;
    std::copy(was.got.begin(), was.got.end(), e.got.begin());
    return Outcome::kDone;
  }
  std::map<std::string, std::vector<Kept>> kept;
  std::size_t next = 0;
  bool equal = true;
};

// A group of two ranks, without the other rank: that one's numbers are all 10.
class OtherGivesTens final : public Group {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 2; }
  [[nodiscard]] std::span<std::byte> registered() const override { return {}; }
  Outcome all_reduce(Numbers to, const std::byte* from, Op) override {
    for (std::size_t i = 0; i < to.count; ++i) {
      float value = 0;
      std::memcpy(&value, from + 4 * i, 4);
      value += 10;
      std::memcpy(to.data + 4 * i, &value, 4);
    }
    return outcome;
  }
  Outcome broadcast(std::span<std::byte> bytes, int root) override {
    if (root == 1) std::fill(bytes.begin(), bytes.end(), std::byte{10});
    return outcome;
  }
  Outcome all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::fill(all.begin(), all.end(), std::byte{10});
    std::copy(mine.begin(), mine.end(), all.begin());
    return outcome;
  }
  Outcome barrier() override { return outcome; }
  void abort() override {}
  [[nodiscard]] bool aborted() const override { return false; }
  void leave() override {}
  [[nodiscard]] std::string why() const override { return ""; }
  Outcome outcome = Outcome::kDone;
};

std::vector<float> all_of(Group& group, std::vector<float> values) {
  EXPECT_EQ(group.all_reduce(std::span(values)), Outcome::kDone);
  std::vector<std::byte> bytes(4, std::byte{1});
  EXPECT_EQ(group.broadcast(bytes, 1), Outcome::kDone);
  std::vector<std::byte> all(8);
  EXPECT_EQ(group.all_gather(bytes, all), Outcome::kDone);
  EXPECT_EQ(group.barrier(), Outcome::kDone);
  values.push_back(static_cast<float>(all[0]));
  return values;
}

TEST(Tape, AStepIsPlayedAsItWasRecorded) {
  const auto tape = std::make_shared<MemoryTape>();
  OtherGivesTens real;
  const std::string name = "tensor";
  RecordedGroup recorded(real, name, *tape);
  const auto expected = all_of(recorded, {1, 2, 3});
  EXPECT_EQ(expected, (std::vector<float>{11, 12, 13, 10}));
  ASSERT_EQ(tape->kept[name].size(), 4U);
  EXPECT_EQ(tape->kept[name][1].given, 0U);  // In the broadcast this rank was not the root.

  Group::Options options;
  options.world_size = 2;
  options.group = name;
  EXPECT_EQ(all_of(*played_group(options, tape), {1, 2, 3}), expected);
  EXPECT_TRUE(tape->equal);
  tape->next = 0;
  EXPECT_EQ(all_of(*played_group(options, tape), {1, 2, 4}), expected);
  EXPECT_FALSE(tape->equal);
}

TEST(Tape, WhatWasNotDoneIsNotRecorded) {
  MemoryTape tape;
  OtherGivesTens real;
  real.outcome = Outcome::kAborted;
  const std::string name;
  RecordedGroup recorded(real, name, tape);
  EXPECT_EQ(recorded.barrier(), Outcome::kAborted);
  EXPECT_TRUE(tape.kept.empty());
}

TEST(Tape, APlayedGroupThatIsAbortedDoesNothingMore) {
  const auto tape = std::make_shared<MemoryTape>();
  const auto group = played_group({}, tape);
  group->abort();
  EXPECT_TRUE(group->aborted());
  EXPECT_EQ(group->barrier(), Outcome::kAborted);
}

}  // namespace
}  // namespace holdfast::collective
