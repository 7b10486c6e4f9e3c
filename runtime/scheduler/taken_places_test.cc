#include "runtime/scheduler/taken_places.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

using wire::Reason;

controller::Note surplus(const std::string& node_id, std::int64_t pid) {
  return {.kind = controller::Note::Kind::kTaken,
          .reason = {.kind = Reason::Kind::kPlacesTaken, .total = 2, .node_id = node_id},
          .seeker = {.node_id = node_id, .host = "h", .pid = pid}};
}

TEST(TakenPlaces, NameEachProcessOnce) {
  TakenPlaces taken;
  EXPECT_EQ(taken.note(surplus("2", 77)),
            "worker '2' (process 77 on h) is refused: all 2 places of the job are taken and none "
            "is called '2': this worker is one too many (see MS_WORKER_NUM, MS_NODE_ID)");
  EXPECT_EQ(taken.note(surplus("2", 77)), std::nullopt);
  EXPECT_NE(taken.note(surplus("2", 78)), std::nullopt);
  ASSERT_EQ(taken.newest().size(), 2U);
  EXPECT_EQ(taken.newest().back().who.pid, 78);
  EXPECT_FALSE(taken.newest().back().waits);
}

TEST(TakenPlaces, SayWhoseTwinWaits) {
  TakenPlaces taken;
  const controller::Note twin{
      .kind = controller::Note::Kind::kTaken,
      .reason = {.kind = Reason::Kind::kLeased, .rank = 1, .pid = 5, .count = 30, .host = "h"},
      .seeker = {.node_id = "1", .host = "g", .pid = 6}};
  EXPECT_EQ(taken.note(twin),
            "worker '1' (process 6 on g) waits: process 5 on h has the place of rank 1: another "
            "one waits until that process has died, is silent for 30 s more (MS_NODE_TIMEOUT), or "
            "the job ends");
  EXPECT_EQ(taken.note(twin), std::nullopt);
  EXPECT_TRUE(taken.newest().back().waits);
}

// A process that is restarted without end fills neither the log nor the memory.
TEST(TakenPlaces, AreNamedSoOftenAndNoMore) {
  TakenPlaces taken;
  std::size_t lines = 0;
  std::string last;
  for (std::int64_t pid = 1; pid <= 1000; ++pid) {
    if (const auto line = taken.note(surplus("2", pid))) {
      ++lines;
      last = *line;
    }
  }
  EXPECT_EQ(lines, TakenPlaces::kNamed);
  EXPECT_TRUE(last.ends_with("; further ones are not named")) << last;
  EXPECT_EQ(taken.newest().size(), TakenPlaces::kShown);
}

}  // namespace
}  // namespace holdfast::runtime
