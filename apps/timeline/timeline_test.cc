// `holdfast timeline`: reading traces, the lanes and recoveries of a history, and the drawing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "apps/timeline/clocks.h"
#include "apps/timeline/draw.h"
#include "apps/timeline/history.h"
#include "apps/timeline/read.h"
#include "apps/timeline/svg.h"
#include "base/text.h"
#include "os/files.h"
#include "os/testing.h"

namespace holdfast::apps::timeline {
namespace {

constexpr std::string_view kStepLine =
    R"({"t_ns":5,"event":"step","pid":9,"rank":2,"step":7,"generation":1,"loss":0.5,"samples":0})";

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

File file_of(std::string_view name, const std::string& lines) {
  File file;
  EXPECT_TRUE(parse_name(name, file));
  LineReader reader(file);
  reader.feed(lines);
  reader.end();
  return file;
}

// `fields` as in JSON, without the braces.
std::string at(std::int64_t ms, std::string_view event, std::string_view fields) {
  return cat(R"({"t_ns":)", ms * 1'000'000, R"(,"event":")", event, R"(","pid":1)",
             fields.empty() ? "" : ",", fields, "}\n");
}

// Rank 1 dies at 100 ms, a spare takes its place, and the scheduler is killed at 200 ms.
std::vector<File> job() {
  std::vector<File> files;
  files.push_back(file_of(
      "agent-1.jsonl",
      at(1, "start", R"("role":"agent","job":"<b>&\"x\"")") +
          at(2, "spawn", R"("process":1,"child":10,"role":"scheduler","node":"scheduler")") +
          at(3, "spawn", R"("process":2,"child":20,"role":"worker","node":"0")") +
          at(4, "spawn", R"("process":3,"child":21,"role":"worker","node":"1")") +
          at(5, "spawn", R"("process":4,"child":22,"role":"spare","node":"")") +
          at(6, "spawn", R"("process":6,"child":23,"role":"rehearsal","node":"1")") +
          at(7, "spawn", R"("process":7,"child":24,"role":"rehearsal","node":"1")") +
          at(101, "died", R"("process":3,"exit_code":-1,"how":"died","detected_ns":100000000)") +
          at(103, "died",
             R"-("process":3,"exit_code":137,"how":"by (SIGKILL)","detected_ns":103000000)-") +
          at(200, "died",
             R"-("process":1,"exit_code":137,"how":"by (SIGKILL)","detected_ns":200000000)-") +
          at(201, "spawn", R"("process":5,"child":11,"role":"scheduler","node":"scheduler")") +
          at(300, "end", R"("success":true,"reason":"")") +
          at(301, "died",
             R"("process":2,"exit_code":143,"how":"SIGTERM","detected_ns":301000000)")));
  files.push_back(file_of(
      "scheduler-10.jsonl",
      at(6, "start", R"("role":"scheduler","job":"x")") +
          at(7, "stop", R"("generation":1,"text":"the job starts")") +
          at(101, "fault",
             R"-("rank":1,"detected_ns":100000000,"text":"rank 1 (process 21) died")-") +
          at(102, "stop", R"-("generation":2,"rank":-1,"text":"rank 1 (process 21) died")-") +
          at(105, "plan", R"("generation":2,"version":40)") +
          at(106, "resume", R"("generation":2,"version":40)") +
          at(107, "how",
             R"-("rank":1,"text":"rank 1 (process 21) was killed by signal 9 (SIGKILL)")-") +
          at(112, "recovered", R"("generation":2,"version":41)")));
  files.push_back(file_of("scheduler-11.jsonl", at(210, "start", R"("job":"x")")));
  const auto steps = [](std::int64_t from, std::int64_t to, int rank, int first) {
    std::string lines;
    for (auto ms = from; ms < to; ms += 2) {
      lines +=
          at(ms, "step", cat(R"("rank":)", rank, R"(,"step":)", first++, R"(,"generation":1)"));
    }
    return lines;
  };
  files.push_back(file_of("worker-20.jsonl", at(8, "start", R"("role":"worker","node":"0")") +
                                                 steps(20, 100, 0, 1) +
                                                 at(108, "reform", R"("rank":0,"generation":2)") +
                                                 steps(112, 290, 0, 41)));
  files.push_back(file_of("worker-21.jsonl",
                          at(8, "start", R"("role":"worker","node":"1")") + steps(20, 100, 1, 1)));
  files.push_back(file_of("worker-22.jsonl", at(9, "start", R"("role":"spare","node":"")") +
                                                 at(9, "waiting", "") +
                                                 at(101, "promoted", R"("node":"1")") +
                                                 at(109, "reform", R"("rank":1,"generation":2)") +
                                                 steps(111, 290, 1, 41)));
  files.push_back(file_of("worker-24.jsonl", at(8, "start", R"("role":"worker","node":"1")")));
  return files;
}

const Lane* lane(const History& history, std::string_view name) {
  for (const auto& one : history.lanes) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

TEST(Read, KeepsAStepWhicheverWayItIsWritten) {
  const auto file = file_of(
      "worker-9.jsonl",
      cat(kStepLine, "\n", R"({"event": "step", "rank": 2,)", R"( "step": 8, "t_ns": 6})", "\n"));
  ASSERT_EQ(file.steps.size(), 2U);
  EXPECT_EQ(file.steps[0].t_ns, 5);
  EXPECT_EQ(file.steps[0].rank, 2);
  EXPECT_EQ(file.steps[0].step, 7U);
  EXPECT_EQ(file.steps[1].step, 8U);
  EXPECT_EQ(file.broken, 0U);
}

TEST(Read, CountsBrokenLinesAndGoesOn) {
  const std::vector<std::string> broken = {"{",
                                           "[]",
                                           "null",
                                           "\xff\xfe",
                                           R"({"t_ns":"1","event":"stop"})",
                                           R"({"t_ns":-1,"event":"stop"})",
                                           R"({"t_ns":9223372036854775807,"event":"stop"})",
                                           R"({"t_ns":1e300,"event":"stop"})",
                                           R"({"t_ns":1,"event":7})",
                                           R"({"t_ns":1,"event":"stop","rank":99999999999})",
                                           std::string(100, '[')};
  std::string lines;
  for (const auto& line : broken) lines += line + "\n";
  const auto file = file_of("worker-9.jsonl", cat(lines, kStepLine, "\n", kStepLine));
  EXPECT_EQ(file.broken, broken.size() + 1) << "the last line has no end";
  EXPECT_EQ(file.steps.size(), 1U);
  EXPECT_TRUE(file.events.empty());
}

TEST(Read, OfAHugeLineKeepsNothingWhereverItIsCut) {
  const std::string huge = R"({"t_ns":1,"event":")" + std::string(3 * kLongestLine, 'x') + "\"}\n";
  const std::string lines = cat(kStepLine, '\n', huge, kStepLine, '\n');
  for (const std::size_t piece : {std::size_t{1}, std::size_t{1000}, lines.size()}) {
    File file;
    LineReader reader(file);
    for (std::size_t from = 0; from < lines.size(); from += piece) {
      reader.feed(std::string_view(lines).substr(from, piece));
    }
    reader.end();
    EXPECT_EQ(file.broken, 1U) << piece;
    EXPECT_EQ(file.steps.size(), 2U) << piece;
    EXPECT_TRUE(file.events.empty()) << piece;
  }
}

TEST(Read, FollowsNoLinkAndSaysHowTracesAreMade) {
  const os::TemporaryFolder folder;
  const auto nothing = read_traces(folder / "missing");
  ASSERT_FALSE(nothing);
  EXPECT_TRUE(has(nothing.error().what, "HOLDFAST_TRACE=")) << nothing.error().what;
  ASSERT_TRUE(os::write_file_atomically(folder / "secret", cat(kStepLine, "\n")));
  ASSERT_EQ(::symlink((folder / "secret").c_str(), (folder / "worker-3.jsonl").c_str()), 0);
  const auto linked = read_traces(folder / "");
  ASSERT_FALSE(linked);
  EXPECT_TRUE(has(linked.error().what, "worker-3.jsonl is not a plain file"))
      << linked.error().what;
  ASSERT_TRUE(os::write_file_atomically(folder / "worker-4.jsonl", cat(kStepLine, "\n")));
  const auto both = read_traces(folder / "");
  ASSERT_TRUE(both);
  EXPECT_EQ(both->files.size(), 1U);
  EXPECT_EQ(both->complaints.size(), 1U);
}

TEST(Read, TakesTheNewestRunOfAFolder) {
  auto files = job();
  const std::size_t all = files.size();
  files.push_back(file_of("worker-7.jsonl", at(900, "start", R"("role":"worker","node":"0")")));
  EXPECT_EQ(keep_newest_run(files), all);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].pid, 7);
}

// The first line of a trace, on a host that has been up for `up_s` seconds when its wall clock is
// at `wall_s`.
std::string clock(std::int64_t up_s, std::string_view boot, std::int64_t wall_s) {
  return at(up_s * 1000, "clock",
            cat(R"("boot":")", boot, R"(","wall_ns":)", wall_s * 1'000'000'000));
}

TEST(Read, SetsTheTracesOfSeveralHostsOnOneClock) {
  const os::TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& lines) {
    ASSERT_TRUE(os::write_file_atomically(folder / name, lines));
  };
  write("agent-a-1.jsonl", clock(1000, "A", 5000) + at(1'000'001, "start", "") +
                               at(1'009'000, "died", R"("detected_ns":1008000000000)"));
  // The wall clock of host A was set meanwhile.
  write("worker-a-2.jsonl", clock(1001, "A", 9999) + at(1'001'000, "start", ""));
  write("worker-b-1.jsonl", clock(20, "B", 5002) + at(20'500, "start", "") +
                                R"({"t_ns":21000000000,"event":"step","rank":1,"step":7})"
                                "\n");
  const auto traces = read_traces(folder / "");
  ASSERT_TRUE(traces);
  ASSERT_EQ(traces->files.size(), 3U) << "all are of one run";
  ASSERT_EQ(traces->complaints.size(), 1U);
  EXPECT_TRUE(has(traces->complaints[0], "of 2 hosts"));
  const auto& files = traces->files;  // In the order of their first events.
  EXPECT_EQ(files[0].host, "a");
  EXPECT_EQ(files[0].events[0].t_ns, 1'000'001'000'000);
  EXPECT_EQ(files[0].events[1].detected_ns, 1'008'000'000'000);
  EXPECT_EQ(files[1].pid, 2);
  EXPECT_EQ(files[1].events[0].t_ns, 1'001'000'000'000);
  EXPECT_EQ(files[2].host, "b");
  EXPECT_EQ(files[2].events[0].t_ns, 1'002'500'000'000);
  EXPECT_EQ(files[2].steps.at(0).t_ns, 1'003'000'000'000);
  EXPECT_EQ(history_of(files).wall_ns, 5'000'001'000'000);
}

TEST(Read, NoClockMovesATimeBeyondAllBounds) {
  std::vector<File> files;
  files.push_back(file_of("worker-a-1.jsonl",
                          R"({"t_ns":9,"event":"clock","boot":"A","wall_ns":3162239999999999999})"
                          "\n" +
                              std::string(kStepLine) + "\n"));
  files.push_back(file_of("worker-b-1.jsonl",
                          R"({"t_ns":3162239999999999999,"event":"clock","boot":"B","wall_ns":1})"
                          "\n" +
                              std::string(kStepLine) + "\n"));
  files.push_back(file_of("worker-3.jsonl", std::string(kStepLine) + "\n"));
  EXPECT_EQ(set_on_one_clock(files), 2U);
  for (const auto& file : files) {
    EXPECT_GT(file.steps.at(0).t_ns, 0);
    EXPECT_LE(file.steps.at(0).t_ns, kLatest);
  }
}

TEST(Lanes, HaveTheSuccessorThePromotedSpareAndTheNextScheduler) {
  const auto files = job();
  const auto history = history_of(files);
  EXPECT_EQ(lane(history, "node 1"), nullptr);  // Rehearsing processes get no lane.
  const auto* rank = lane(history, "rank 1");
  ASSERT_NE(rank, nullptr);
  ASSERT_EQ(rank->bars.size(), 2U);
  EXPECT_EQ(rank->bars[0].pid, 21);
  EXPECT_EQ(rank->bars[0].to_ns, 100'000'000) << "when it was first known";
  EXPECT_EQ(short_death(rank->bars[0].death), "SIGKILL") << "how it was known at last";
  EXPECT_EQ(rank->bars[1].pid, 22);
  EXPECT_EQ(rank->bars[1].from_ns, 101'000'000);
  const auto* spare = lane(history, "spare 1");
  ASSERT_NE(spare, nullptr);
  ASSERT_EQ(spare->bars.size(), 1U);
  EXPECT_TRUE(spare->bars[0].waits);
  EXPECT_EQ(spare->bars[0].to_ns, 101'000'000);
  const auto* scheduler = lane(history, "scheduler");
  ASSERT_NE(scheduler, nullptr);
  ASSERT_EQ(scheduler->bars.size(), 2U);
  EXPECT_EQ(scheduler->bars[0].to_ns, 200'000'000);
  EXPECT_EQ(lane(history, "rank 0")->bars[0].death, "") << "ended after the job, in good order";
  EXPECT_EQ(history.ranks, 2U);
}

TEST(Recovery, HasThePhasesOfTheScheduler) {
  const auto files = job();
  const auto history = history_of(files);
  ASSERT_EQ(history.recoveries.size(), 1U) << "the start of the job is none";
  const auto& one = history.recoveries[0];
  EXPECT_EQ(one.detected_ns, 100'000'000);
  EXPECT_EQ(one.ends_ns, (std::array<std::int64_t, kPhases>{102'000'000, 105'000'000, 106'000'000,
                                                            109'000'000, 112'000'000}));
  EXPECT_EQ(one.cause, "rank 1 (process 21) was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(one.steps_lost, 0U);
}

// Every tag that opens is closed, in order, and every '&' begins a known entity.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t from = xml.find('<'); from != std::string::npos;
       from = xml.find('<', from + 1)) {
    const std::size_t end = xml.find('>', from);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(from + 1, end - from - 1);
    const std::string name = tag.substr(0, tag.find(' '));
    if (tag.front() == '?' || tag.back() == '/') continue;
    if (tag.front() != '/') {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    ASSERT_EQ("/" + open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
  for (std::size_t i = xml.find('&'); i != std::string::npos; i = xml.find('&', i + 1)) {
    const std::string_view rest = std::string_view(xml).substr(i);
    EXPECT_TRUE(rest.starts_with("&amp;") || rest.starts_with("&lt;") || rest.starts_with("&gt;") ||
                rest.starts_with("&quot;"))
        << rest.substr(0, 20);
  }
}

TEST(Drawing, IsWellFormedAndHasItsNumbers) {
  const auto files = job();
  const auto svg = draw(history_of(files), {});
  expect_well_formed(svg);
  for (const char* part : {"Job &lt;b&gt;&amp;&quot;x&quot;", "2 ranks, ",
                           "1 recovery, steps lost: 0", "Recovery 1: 12.0 ms. rank 1 (process 21)",
                           ">notice 2.0 ms</text>", ">stop 3.0 ms</text>", ">repair 1.0 ms</text>",
                           ">form 3.0 ms</text>", ">first step 3.0 ms</text>", ">SIGKILL</text>"}) {
    EXPECT_TRUE(has(svg, part)) << part << "\n" << svg;
  }
  EXPECT_FALSE(has(svg, "<b>"));
  EXPECT_FALSE(has(svg, "<script"));
  EXPECT_FALSE(has(svg, "href"));
}

// The panel shows the 12 ms of a recovery and an eighth more on each side, so 15 ms.
TEST(Drawing, HasThePhasesWhereTheyBelong) {
  const auto files = job();
  const auto svg = draw(history_of(files), {});
  // The panel shows 15 ms on 1100 pixels, and begins 1.5 ms before the fault.
  for (const auto& [from_ms, to_ms] : {std::pair(0, 2), {2, 5}, {5, 6}, {6, 9}, {9, 12}}) {
    const double x = 110 + (from_ms + 1.5) / 15 * 1100;
    const double width = (to_ms - from_ms) / 15.0 * 1100;
    const std::string start = cat("<rect x=\"", coordinate(x), "\"");
    const std::string wide = cat("width=\"", coordinate(width), "\" height=\"10\"");
    const std::size_t found = svg.find(wide);
    EXPECT_NE(found, std::string::npos) << wide;
    EXPECT_TRUE(has(svg, start)) << start;
  }
}

TEST(Drawing, SaysThatAJobDidNotGoOn) {
  const auto files = job();
  auto history = history_of(files);
  EXPECT_FALSE(has(draw(history, {}), "not completed"));
  history.recoveries.back().ends_ns = {};
  EXPECT_TRUE(has(draw(history, {}), "steps lost: 0; the last recovery was not completed"));
}

TEST(Drawing, OfAZoomLeavesOutRecoveriesBeyondIt) {
  const auto files = job();
  EXPECT_FALSE(has(draw(history_of(files), {.from = 0.15}), "Recovery 1:"));
  EXPECT_TRUE(has(draw(history_of(files), {.from = 0.05, .to = 0.15}), "Recovery 1:"));
}

TEST(Drawing, OfManyStepsStaysSmall) {
  std::vector<File> files(64);
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    files[rank].pid = static_cast<std::int64_t>(100 + rank);
    for (std::uint32_t step = 1; step <= 20'000; ++step) {
      files[rank].steps.push_back({1'000'000LL * step + 777LL * static_cast<std::int64_t>(rank),
                                   step, static_cast<std::int32_t>(rank)});
    }
  }
  const auto svg = draw(history_of(files), {});
  expect_well_formed(svg);
  EXPECT_LT(svg.size(), 2'000'000U);
}

TEST(Text, IsEscapedAndHasNoControlCharacters) {
  EXPECT_EQ(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
  EXPECT_EQ(escaped(std::string_view("\0\x1b\n\xff", 4)), "????");
}

}  // namespace
}  // namespace holdfast::apps::timeline
