#include "io/journal_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "io/journal_testing.h"
#include "io/testing.h"

namespace holdfast::io {
namespace {

using Hand = HeldJournal::Hand;

class JournalWriterTest : public testing::Test {
 protected:
  // Stops the loop when `until` stores are durable.
  void begin(std::size_t until, std::unique_ptr<Journal> behind = nullptr) {
    writer_ = std::make_unique<JournalWriter>(
        loop_, std::make_unique<HeldJournal>(hand_, std::move(behind)),
        [this, until](const Result<std::size_t>& heard) {
          heard_.push_back(heard ? cat(*heard) : heard.error().what);
          durable_ += heard ? *heard : until;
          if (durable_ >= until) loop_.stop();
        });
  }

  const std::shared_ptr<Hand> hand_ = std::make_shared<Hand>();
  std::vector<std::string> heard_;
  std::size_t durable_ = 0;
  Loop loop_;
  std::unique_ptr<JournalWriter> writer_;
};

TEST_F(JournalWriterTest, WhatQueuesBehindATransactionIsTheNextOne) {
  begin(101);
  writer_->store({.kept = {{"first", "1"}}});
  hand_->until_held();
  for (std::uint64_t i = 1; i <= 100; ++i) {
    writer_->store({.kept = {{cat(i % 7), cat(i), i}}, .writers = {{i % 3, i, i}}});
  }
  // The loop runs on during the transaction.
  loop_.post([&] {
    EXPECT_TRUE(heard_.empty());
    loop_.post([&] { hand_->let_go(); });
  });
  run_to_stop(loop_);
  EXPECT_EQ(heard_, (std::vector<std::string>{"1", "100"}));
  ASSERT_EQ(hand_->stored.size(), 2U);
  EXPECT_EQ(hand_->stored[1].kept.size(), 7U);
  for (const auto& pair : hand_->stored[1].kept) EXPECT_GT(pair.version, 93U) << "the newest";
  EXPECT_EQ(hand_->stored[1].writers,
            (std::vector<wire::Writer>{{1, 100, 100}, {2, 98, 98}, {0, 99, 99}}));
}

TEST_F(JournalWriterTest, WhatAJournalDoesNotTakeAtOnceIsWrittenInOrder) {
  hand_->one_by_one = true;
  begin(4);
  for (const char* value : {"1", "2", "3", "4"}) writer_->store({.kept = {{"a", value}}});
  hand_->let_go();
  run_to_stop(loop_);
  EXPECT_EQ(heard_, std::vector<std::string>(4, "1"));
  std::string all;
  for (const auto& each : hand_->stored) all += each.kept.at(0).value;
  EXPECT_EQ(all, "1234");
}

TEST_F(JournalWriterTest, AnErrorIsTheLastWord) {
  hand_->result = Error{Blame::kWorld, "no room"};
  hand_->one_by_one = true;
  begin(1);
  for (const char* value : {"1", "2"}) writer_->store({.kept = {{"a", value}}});
  hand_->let_go();
  run_to_stop(loop_);
  EXPECT_TRUE(writer_->remove());
  EXPECT_EQ(heard_, std::vector<std::string>{"no room"});
  EXPECT_EQ(hand_->stored.size(), 1U);
}

TEST_F(JournalWriterTest, WhatIsInMemoryIsWrittenAtOnceAndToldInTheLoop) {
  hand_->in_memory = true;
  hand_->holds = false;
  begin(3);
  writer_->store({.kept = {{"a", "1"}}});
  writer_->store({.kept = {{"a", "2"}}});
  EXPECT_EQ(hand_->stored.size(), 2U);
  EXPECT_TRUE(heard_.empty());
  hand_->result = Error{Blame::kWorld, "no room"};
  for (const char* value : {"3", "4"}) writer_->store({.kept = {{"a", value}}});
  run_to_stop(loop_);
  EXPECT_EQ(heard_, (std::vector<std::string>{"1", "1", "no room"}));
  EXPECT_EQ(hand_->stored.size(), 3U) << "an error is the last word";
}

wire::Seat seat(const std::string& node) {
  return {.node_id = node};
}

// Changes merged into one give what they give one after the other.
TEST_F(JournalWriterTest, ABatchIsWhatItsPartsAre) {
  std::vector<wire::Changes> all;
  const auto formation = [](Generation generation, const std::vector<wire::Seat>& roster) {
    return wire::Formation{.job = "job", .generation = generation, .roster = roster};
  };
  all.push_back({.kept = {{"a", "1"}, {"b", "1"}}});
  all.push_back({.formation = formation(1, {seat("x"), seat("y"), seat("z")})});
  all.push_back({.seats = {{1, seat("y2")}}});
  all.push_back(
      {.formation = formation(2, {}), .seats = {{0, seat("x2")}}, .kept = {{"a", "2", 2}}});
  all.push_back({.formation = formation(3, {seat("p"), seat("q")})});
  all.push_back({.seats = {{1, seat("q2")}}, .writers = {{5, 1, 1}}, .remarks = {{1, {1, {}}}}});
  all.push_back({.formation = formation(4, {}),
                 .kept = {{"c", "1"}},
                 .writers = {{5, 2, 2}},
                 .remarks = {{2, {2, {}}}}});
  const auto memory_of = [](const std::string& path) {
    auto journal = Journal::open(path, "job");
    auto memory = *(*journal)->load();
    std::sort(memory.kept.begin(), memory.kept.end(),
              [](const auto& a, const auto& b) { return a.key < b.key; });
    return memory;
  };
  for (std::size_t first = 0; first < all.size(); ++first) {
    const TemporaryFolder folder;
    {
      auto journal = Journal::open(folder / "one", "job");
      for (const auto& each : all) ASSERT_TRUE((*journal)->store(each));
    }
    heard_.clear();
    durable_ = 0;
    hand_->holds = true;
    auto batched = Journal::open(folder / "batched", "job");
    for (std::size_t i = 0; i < first; ++i) ASSERT_TRUE((*batched)->store(all[i]));
    begin(all.size() - first + 1, *std::move(batched));
    writer_->store({.kept = {{"c", "0"}}});
    hand_->until_held();
    for (std::size_t i = first; i < all.size(); ++i) writer_->store(all[i]);
    hand_->let_go();
    run_to_stop(loop_);
    EXPECT_EQ(heard_, (std::vector<std::string>{"1", cat(all.size() - first)}));
    writer_.reset();
    const auto one = memory_of(folder / "one");
    const auto other = memory_of(folder / "batched");
    EXPECT_EQ(one.formation, other.formation) << first;
    EXPECT_EQ(one.kept, other.kept) << first;
    EXPECT_EQ(one.writers, other.writers) << first;
    EXPECT_EQ(one.remarks, other.remarks) << first;
    EXPECT_EQ(one.remarks.size(), 2U) << first;
  }
}

}  // namespace
}  // namespace holdfast::io
