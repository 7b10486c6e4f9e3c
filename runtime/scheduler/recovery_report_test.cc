// Recovery reports: made of the controller's notes, one for each recovery.
#include "runtime/scheduler/recovery_report.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

namespace holdfast::runtime {
namespace {

using controller::Note;
using Kind = controller::Note::Kind;

constexpr Instant at(int milliseconds) {
  return std::chrono::milliseconds(milliseconds);
}

wire::Reason lost(Rank rank, std::int64_t pid = 5, const wire::Ending& ending = {}) {
  return {.kind = wire::Reason::Kind::kRankLost, .rank = rank, .pid = pid, .ending = ending};
}

Note fault(Rank rank, std::uint64_t detected_ns = 0) {
  return {Kind::kFault, 1, 7, rank, lost(rank), detected_ns};
}

Note note(Kind kind, Generation generation, Version version) {
  return {kind, generation, version, kNoRank, lost(9), 0};
}

TEST(RecoveryReport, CountsThePhasesFromTheAgentsDetection) {
  RecoveryLog log(0);
  EXPECT_FALSE(log.note(at(1002), fault(1, 1'000'000'000)));
  EXPECT_FALSE(log.note(at(1003), note(Kind::kStop, 2, 7)));
  Note successor = note(Kind::kTookOver, 2, 7);
  successor.rank = 1;
  successor.reason = {.pid = 77, .host = "a"};
  EXPECT_FALSE(log.note(at(1004), successor));
  EXPECT_FALSE(log.note(at(1005), note(Kind::kPlan, 2, 9)));
  Note repaired = note(Kind::kRepaired, 2, 9);
  repaired.rebuilt = {{0, wire::Act::kFinish}, {1, wire::Act::kReceive, 0, kNoRank, 4096, true}};
  EXPECT_FALSE(log.note(at(1006), repaired));
  EXPECT_FALSE(log.note(at(1007), note(Kind::kResume, 2, 9)));
  const auto report = log.note(at(1010), note(Kind::kRecovered, 2, 10));
  ASSERT_TRUE(report);
  EXPECT_EQ(to_json(*report),
            R"({"recovery":1,"generation":2,"cause":"rank 1 (process 5) died","kind":"died",)"
            R"("ranks":[1],"version":9,)"
            R"("steps_lost":0,"detected_ns":1000000000,"stop_ms":3.0,"plan_ms":5.0,)"
            R"("repair_ms":6.0,"resume_ms":7.0,"first_step_ms":10.0,"over_ms":10.0,)"
            R"("at":"1970-01-01T00:00:00.000Z","seen_by":"the agent of its host",)"
            R"("faults":[{"rank":1,"pid":5,"cause":"rank 1 (process 5) died",)"
            R"("seen_by":"the agent of its host","after_ms":0.0,"waited_ms":null,"drill":null}],)"
            R"("successors":[{"rank":1,"pid":77,"host":"a","after_ms":4.0}],)"
            R"("rebuilt":[{"rank":1,"act":"receive","source":0,"private_source":null,"bytes":4096,)"
            R"("of_pages":true},{"rank":0,"act":"finish","source":null,"private_source":null,)"
            R"("bytes":0,"of_pages":false}],"left_out":0})");
  EXPECT_EQ(in_words(*report),
            "recovery 1: rank 1 (process 5) died; training went on after step 9 as generation 2; "
            "steps lost: 0 "
            "(ms after the fault: stop 3.0, plan 5.0, repair 6.0, resume 7.0, first step 10.0)");
}

TEST(RecoveryReport, SaysHowTheDeathCameOnceThatIsKnown) {
  const auto how = [](std::int64_t pid) {
    return Note{Kind::kHow, 2, 7, 1, lost(1, pid, {wire::Ending::Kind::kSignalled, 9}), 0};
  };
  RecoveryLog log(0);
  (void)log.note(at(10), fault(1));
  (void)log.note(at(12), note(Kind::kResume, 2, 7));
  (void)log.note(at(13), how(55));
  auto report = log.finish(at(10000), {});
  ASSERT_TRUE(report && lacks_how(*report));
  EXPECT_TRUE(complete(*report, how(5)));
  EXPECT_FALSE(lacks_how(*report));
  EXPECT_EQ(report->cause().ending.kind, wire::Ending::Kind::kSignalled);
}

TEST(RecoveryReport, TakesTheJobsStartForNoRecovery) {
  RecoveryLog log(0);
  EXPECT_FALSE(log.note(at(1), note(Kind::kStop, 1, 0)));
  EXPECT_FALSE(log.note(at(2), note(Kind::kPlan, 1, 0)));
  EXPECT_FALSE(log.note(at(3), note(Kind::kResume, 1, 0)));
  EXPECT_FALSE(log.note(at(4), note(Kind::kRecovered, 1, 1)));
  EXPECT_FALSE(log.finish(at(10000), {}));
}

TEST(RecoveryReport, JoinsFaultsThatComeInOneRecovery) {
  RecoveryLog log(4);
  (void)log.note(at(10), fault(1));
  (void)log.note(at(10), note(Kind::kStop, 2, 7));
  (void)log.note(at(12), fault(0));
  (void)log.note(at(13), fault(1));
  (void)log.note(at(14), note(Kind::kPlan, 2, 7));
  (void)log.note(at(15), note(Kind::kStop, 3, 7));
  (void)log.note(at(16), note(Kind::kPlan, 3, 7));
  (void)log.note(at(17), note(Kind::kResume, 3, 7));
  const auto report = log.note(at(18), note(Kind::kRecovered, 3, 8));
  ASSERT_TRUE(report);
  EXPECT_EQ(report->number, 5U);
  EXPECT_EQ(report->generation, 3U);
  EXPECT_EQ(report->cause(), lost(1));
  EXPECT_EQ(report->ranks, (std::vector<Rank>{1, 0}));
  EXPECT_EQ(report->stop, at(10));
}

std::vector<wire::Reason> faults_of(const RecoveryReport& report) {
  std::vector<wire::Reason> all;
  for (const Fault& fault : report.faults) all.push_back(fault.what);
  return all;
}

TEST(RecoveryReport, NamesAllFaultsInTheirOrder) {
  RecoveryLog log(0);
  const wire::Reason pages{.kind = wire::Reason::Kind::kPagesLost, .rank = 2, .count = 1};
  (void)log.note(at(10), fault(1));
  (void)log.note(at(10), {Kind::kStop, 2, 7, kNoRank, lost(1), 0});
  (void)log.note(at(12), fault(0));
  (void)log.note(at(13), {Kind::kStop, 3, 7, kNoRank, pages, 0});
  const wire::Ending killed{wire::Ending::Kind::kSignalled, 9};
  (void)log.note(at(14), {Kind::kHow, 3, 7, 0, lost(0, 5, killed), 0});
  (void)log.note(at(15), note(Kind::kResume, 3, 7));
  auto report = log.note(at(16), note(Kind::kRecovered, 3, 8));
  ASSERT_TRUE(report);
  EXPECT_EQ(faults_of(*report), (std::vector<wire::Reason>{lost(1), lost(0, 5, killed), pages}));
  EXPECT_EQ(report->faults[2].at, at(13));
  EXPECT_TRUE(lacks_how(*report)) << "how rank 1 died";
  EXPECT_TRUE(complete(*report, {Kind::kHow, 3, 7, 1, lost(1, 5, killed), 0}));
  EXPECT_FALSE(lacks_how(*report));
  EXPECT_NE(in_words(*report).find("; then rank 0 (process 5) was killed by signal 9"),
            std::string::npos)
      << in_words(*report);
}

// The others stood still from when they came to wait, not only from when the rank was ended.
TEST(RecoveryReport, TellsHowLongAHangWasWaitedFor) {
  const auto held = [](std::int64_t pid) {
    const wire::Reason why{
        .kind = wire::Reason::Kind::kHoldsUp, .rank = 1, .pid = pid, .count = 1000};
    return Note{Kind::kHeldUp, 1, 7, 1, why, 0};
  };
  const wire::Reason hung = lost(1, 5, {wire::Ending::Kind::kWasHung});
  for (const std::int64_t pid : {5, 6}) {
    RecoveryLog log(0);
    (void)log.note(at(3000), held(pid));
    (void)log.note(at(9000), {Kind::kFault, 1, 7, 1, hung, 0});
    const auto report = log.finish(at(9500), {});
    ASSERT_TRUE(report);
    const bool is_same = pid == 5;
    EXPECT_EQ(report->faults[0].waited.has_value(), is_same);
    const std::string json = to_json(*report);
    EXPECT_NE(json.find(is_same ? R"("waited_ms":7000.0)" : R"("waited_ms":null)"),
              std::string::npos);
    EXPECT_NE(json.find(R"("over_ms":500.0)"), std::string::npos) << json;
  }
}

// A signal to the whole job ends its processes one after another.
TEST(RecoveryReport, IsNotOfAnInterruptOfTheWholeJob) {
  using Ending = wire::Ending::Kind;
  const wire::Reason interrupt{.kind = wire::Reason::Kind::kInterrupted, .count = SIGTERM};
  const auto after = [](const wire::Ending& ending, const wire::Reason& end, bool resumed) {
    RecoveryLog log(2);
    (void)log.note(at(10), {Kind::kFault, 1, 7, 1, lost(1, 5, ending), 0});
    (void)log.note(at(11), note(Kind::kStop, 2, 7));
    if (resumed) (void)log.note(at(12), note(Kind::kResume, 2, 7));
    return log.finish(at(13), end).has_value();
  };
  EXPECT_FALSE(after({Ending::kSignalled, SIGTERM}, interrupt, false));
  EXPECT_FALSE(after({Ending::kSignalled, SIGTERM}, {.kind = wire::Reason::Kind::kStopped}, false));
  EXPECT_FALSE(after({Ending::kExited, 128 + SIGTERM}, interrupt, false));
  EXPECT_FALSE(after({}, interrupt, false));
  EXPECT_TRUE(after({Ending::kSignalled, SIGKILL}, interrupt, false));
  EXPECT_TRUE(after({Ending::kSignalled, SIGTERM}, interrupt, true));
  EXPECT_TRUE(
      after({Ending::kSignalled, SIGTERM}, {.kind = wire::Reason::Kind::kNotFormedInTime}, false));
}

TEST(RecoveryReport, EndsWithTheNextFaultWhereNoStepWasMadeMeanwhile) {
  RecoveryLog log(0);
  (void)log.note(at(10), fault(1));
  (void)log.note(at(10), note(Kind::kStop, 2, 7));
  (void)log.note(at(11), note(Kind::kPlan, 2, 7));
  (void)log.note(at(12), note(Kind::kResume, 2, 7));
  const auto cut = log.note(at(13), fault(0));
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->cause(), lost(1));
  EXPECT_FALSE(cut->first_step);
  const auto open = log.finish(at(10000), {});
  ASSERT_TRUE(open);
  EXPECT_EQ(open->number, 2U);
  EXPECT_NE(in_words(*open).find("it was not completed"), std::string::npos);
}

TEST(RecoveryReport, DoesNotBelieveAnotherHostsClock) {
  RecoveryLog log(0);
  (void)log.note(at(1000), fault(1, 999'000'000'000));
  EXPECT_EQ(log.finish(at(10000), {})->detected, at(1000));
  (void)log.note(std::chrono::hours(2), fault(1, 5));
  EXPECT_EQ(log.finish(at(10000), {})->detected, std::chrono::hours(2));
}

TEST(RecoveryReport, OwnsUpToStepsThatWereLost) {
  RecoveryLog log(0);
  (void)log.note(at(10), fault(1));
  Note plan = note(Kind::kPlan, 2, 7);
  plan.steps_lost = 2;
  (void)log.note(at(11), plan);
  (void)log.note(at(12), fault(0));
  (void)log.note(at(13), note(Kind::kPlan, 3, 7));  // The first plan has counted the lost steps.
  (void)log.note(at(14), note(Kind::kResume, 3, 7));
  const auto report = log.finish(at(10000), {});
  EXPECT_EQ(report->steps_lost, 2U);
  EXPECT_NE(to_json(*report).find(R"("steps_lost":2,)"), std::string::npos) << to_json(*report);
  EXPECT_NE(in_words(*report).find("steps lost: 2 "), std::string::npos) << in_words(*report);
}

TEST(RecoveryReport, CountsNoStepsWhereTheJobDidNotGoOn) {
  RecoveryLog log(0);
  (void)log.note(at(10), fault(1));
  (void)log.note(at(10), note(Kind::kStop, 2, 7));
  const std::string json = to_json(*log.finish(at(10000), {}));
  EXPECT_NE(json.find(R"("steps_lost":null,)"), std::string::npos) << json;
}

}  // namespace
}  // namespace holdfast::runtime
