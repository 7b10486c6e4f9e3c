// A job's history out of the reports of its recoveries.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/timeline/draw.h"
#include "apps/timeline/reports.h"

namespace holdfast::apps::timeline {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kBegan = 1'790'000'000 * kSecond;  // 2026-09-21T14:13:20Z.

// Rank 1 is killed in second 10, its successor 5 ms later; all go on after 8 ms.
constexpr const char* kKilled =
    R"-({"recovery":1,"cause":"rank 1 (process 21) was killed by signal 9 (SIGKILL)","ranks":[1],
        "steps_lost":2,"stop_ms":1.0,"plan_ms":2.0,"repair_ms":3.0,"resume_ms":4.0,
        "first_step_ms":8.0,"at":"2026-09-21T14:13:30.000Z",
        "faults":[{"rank":1,"pid":21,"cause":"killed (SIGKILL)","after_ms":0.0}],
        "successors":[{"rank":1,"pid":31,"host":"a","after_ms":2.5}]})-";
constexpr const char* kStatus =
    R"({"job":"x","version":77,"ranks":[{"rank":0,"pid":20},{"rank":1,"pid":31}]})";

History of(const std::vector<std::string>& reports, const std::string& status = kStatus) {
  std::vector<Json> all;
  for (const auto& report : reports) all.push_back(Json::parse(report, nullptr, false));
  return history_of_reports(all, Json::parse(status, nullptr, false),
                            {kBegan, kBegan + 20 * kSecond});
}

TEST(Reports, ShowTheDeadProcessAndItsSuccessorInOneLane) {
  const History history = of({kKilled});
  ASSERT_EQ(history.lanes.size(), 2U);
  EXPECT_EQ(history.steps, 77U);
  EXPECT_EQ(history.lanes[0].bars.size(), 1U);
  EXPECT_EQ(history.lanes[0].bars[0].pid, 20);
  const auto& bars = history.lanes[1].bars;
  ASSERT_EQ(bars.size(), 2U);
  EXPECT_EQ(bars[0].pid, 21);
  EXPECT_EQ(bars[0].from_ns, kBegan);
  EXPECT_EQ(bars[0].to_ns, kBegan + 10 * kSecond);
  EXPECT_EQ(short_death(bars[0].death), "SIGKILL");
  EXPECT_EQ(bars[1].pid, 31);
  EXPECT_EQ(bars[1].from_ns, kBegan + 10 * kSecond + 2'500'000);
  EXPECT_EQ(bars[1].to_ns, kBegan + 20 * kSecond);
  EXPECT_EQ(bars[1].death, "");
}

TEST(Reports, HaveThePhasesOfARecovery) {
  const History history = of({kKilled});
  ASSERT_EQ(history.recoveries.size(), 1U);
  const Recovery& one = history.recoveries[0];
  EXPECT_TRUE(one.done());
  EXPECT_EQ(one.end_ns() - one.detected_ns, 8'000'000);
  EXPECT_EQ(one.steps_lost, 2U);
  EXPECT_EQ(one.ranks, std::vector<std::int64_t>{1});
  const std::string picture = draw(history, {});
  for (const char* part : {"Job x", "2 ranks, 77 steps, 1 recovery, steps lost: 2", "8.0 ms",
                           "stop 1.0 ms", "repair 2.0 ms", "first step 4.0 ms"}) {
    EXPECT_NE(picture.find(part), std::string::npos) << part;
  }
  for (const char* part : {"spare, waits", ">form"}) {
    EXPECT_EQ(picture.find(part), std::string::npos) << "it knows nothing of that: " << part;
  }
}

TEST(Reports, SuccessorsThatDieDuringTheRecoveryHaveBarsOfTheirOwn) {
  const History history = of({R"-({"at":"2026-09-21T14:13:30.000Z","first_step_ms":90,
      "faults":[{"rank":1,"pid":21,"cause":"exited with code 3","after_ms":0},
                {"rank":1,"pid":31,"cause":"killed (SIGKILL)","after_ms":20}],
      "successors":[{"rank":1,"pid":31,"after_ms":10},{"rank":1,"pid":41,"after_ms":30}]})-"});
  const auto& bars = history.lanes.at(1).bars;
  ASSERT_EQ(bars.size(), 3U);
  EXPECT_EQ(short_death(bars[0].death), "exit 3");
  EXPECT_EQ(bars[0].to_ns, kBegan + 10 * kSecond);
  EXPECT_EQ(short_death(bars[1].death), "SIGKILL");
  EXPECT_EQ(bars[1].to_ns, kBegan + 10 * kSecond + 20'000'000);
}

// A page that is lost ends no process. A recovery that comes to no step ends with the job.
TEST(Reports, ARankWithoutASuccessorLivesIfTheJobWentOn) {
  for (const bool went_on : {true, false}) {
    const History history =
        of({std::string(R"({"at":"2026-09-21T14:13:30.000Z","first_step_ms":)") +
            (went_on ? "9" : "null") +
            R"(,"faults":[{"rank":0,"pid":20,"cause":"lost pages","after_ms":0}]})"});
    EXPECT_EQ(history.lanes.at(0).bars.at(0).death.empty(), went_on);
    EXPECT_EQ(history.recoveries.at(0).done(), went_on);
  }
}

TEST(Reports, OfAnyContentsMakeAPicture) {
  const std::string odd =
      R"({"recovery":-1e300,"at":"2026-09-21T14:13:99.000Z","stop_ms":-5,"plan_ms":1e308,
          "first_step_ms":"x","ranks":[-1,"a",{}],"steps_lost":-3,
          "faults":[7,{"rank":1e300},{"rank":0,"pid":"p","after_ms":1e308,"cause":{}}],
          "successors":{"rank":0}})";
  for (const auto& reports : std::vector<std::vector<std::string>>{
           {}, {"[]"}, {"{}"}, {"no json"}, {R"({"at":"yesterday"})"}, {odd, odd}}) {
    for (const char* status : {"no json", "[1]", R"({"job":7,"ranks":[{"rank":"x"},3]})"}) {
      const std::string picture = draw(of(reports, status), {});
      EXPECT_NE(picture.find("</svg>"), std::string::npos);
      EXPECT_EQ(picture.find("nan"), std::string::npos);
    }
  }
}

// A launcher that was started again (--continue) knows of recoveries from before.
TEST(Reports, WhatHappenedBeforeTheLauncherBeganIsShown) {
  std::string early = kKilled;
  early.replace(early.find("14:13:30"), 8, "14:10:00");
  const History history = of({early, kKilled});
  EXPECT_EQ(history.from_ns, kBegan - 200 * kSecond);
  EXPECT_EQ(history.recoveries.size(), 2U);
}

TEST(Reports, OfThousandsOfRanksTheLanesWithDeathsComeFirst) {
  std::string status = R"({"ranks":[)";
  for (int rank = 0; rank < 1000; ++rank) {
    status += (rank == 0 ? "" : ",") + std::string(R"({"rank":)") + std::to_string(rank) + "}";
  }
  std::string late = kKilled;
  const std::string one = R"("rank":1,)";
  for (std::size_t at = 0; (at = late.find(one, at)) != std::string::npos; ++at) {
    late.replace(at, one.size(), R"("rank":999,)");
  }
  const History history = of({late}, status + "]}");
  EXPECT_EQ(history.ranks, 1000U);
  EXPECT_EQ(history.lanes.at(0).name, "rank 999");
  EXPECT_EQ(history.lanes.at(1).name, "rank 0");
}

}  // namespace
}  // namespace holdfast::apps::timeline
