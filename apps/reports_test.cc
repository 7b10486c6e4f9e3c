// What a job reports: why it failed, its traces, its status, its progress on a terminal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/fd.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

// The agent is stopped until the job has failed, so it learns of the failure late. If the scheduler
// were gone by then, the agent would start another one, which does not know the cause.
TEST(Failure, BeforeTheAgentIsConnectedIsToldWithItsFirstCause) {
  Job job("first-moments");
  const std::string go = job.folder + "/go";
  std::string line = cat("[ \"$MS_ROLE\" = MS_SCHED ] && while [ ! -e ", go,
                         " ]; do sleep 0.01; done; "
                         "[ \"$MS_NODE_ID\" = 1 ] && other='--elements 2000'; exec");
  for (const auto& word : toy_command(job, 1000)) line += " " + word;
  job.launch({"--worker_num", "2", "--join", "True", "sh", "-c", line + " $other"});
  ASSERT_TRUE(until([&] { return !job.processes("MS_NODE_ID=1").empty(); })) << job.output();
  job.signal(0, SIGSTOP);
  ASSERT_TRUE(os::write_file_atomically(go, ""));
  EXPECT_TRUE(until([&] { return has(job.log("scheduler.log"), "the job has failed: rank"); }))
      << job.log("scheduler.log") << job.log("worker_0.log");
  job.signal(0, SIGCONT);
  EXPECT_EQ(job.wait(), 1) << job.output();
  EXPECT_TRUE(has(job.output(), "the job has failed: rank")) << job.output();
  EXPECT_EQ(count(job.log("scheduler.log"), "serves job"), 1U) << job.log("scheduler.log");
  EXPECT_TRUE(job.nothing_left());
}

TEST(Failure, OfAFolderThatCanNotBeMadeComesBeforeAnythingStarts) {
  for (const char* setting : {"HOLDFAST_TRACE", "MS_RECOVERY_PATH", "--log_dir"}) {
    Job job("no-folder");
    const std::string logs = job.logs;
    if (has(setting, "--")) {
      job.logs = "/proc/no";
    } else {
      job.environment.push_back(cat(setting, "=/proc/no"));
    }
    job.launch({"--worker_num", "1", "sh", "-c", "echo started"});
    EXPECT_EQ(job.wait(), 2) << setting;
    EXPECT_TRUE(has(job.output(), cat(setting, " is '/proc/no', but "))) << job.output();
    EXPECT_TRUE(os::tail(logs + "/worker_0.log", 1).empty());
    EXPECT_TRUE(job.nothing_left());
  }
}

using Fields = std::set<std::string>;
using Table = std::map<std::string, Fields>;  // From "writer event" to the fields of that event.

// The first table of docs/formats/trace.md.
Table documented() {
  Table table;
  const auto text = os::read_file(HOLDFAST_SOURCE_DIR "/docs/formats/trace.md");
  for (std::size_t at = 0; text && at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    std::vector<std::string> cells;
    const std::string line = text->substr(at, end - at);
    for (std::size_t bar = line.find('|'); bar != std::string::npos;) {
      const std::size_t next = line.find('|', bar + 1);
      if (next != std::string::npos) cells.push_back(line.substr(bar + 1, next - bar - 1));
      bar = next;
    }
    const auto quoted = [](const std::string& cell) {
      Fields words;
      for (std::size_t from = cell.find('`'); from != std::string::npos;) {
        const std::size_t to = cell.find('`', from + 1);
        words.insert(cell.substr(from + 1, to - from - 1));
        from = cell.find('`', to + 1);
      }
      return words;
    };
    if (cells.size() == 4 && quoted(cells[1]).size() == 1) {
      table[cells[0].substr(1, cells[0].size() - 2) + ' ' + *quoted(cells[1]).begin()] =
          quoted(cells[2]);
    }
    at = end + 1;
  }
  return table;
}

// Two ranks train to their end, with traces in `folder`. The process of rank 1 is killed meanwhile.
void train_with_a_kill(Job& job, const std::string& folder, pid_t& victim) {
  job.environment.push_back("HOLDFAST_TRACE=" + folder);
  job.launch(toy(job, 3000, {"--worker_num", "2", "--spares", "1"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  const auto victims = job.processes("MS_NODE_ID=1");
  ASSERT_EQ(victims.size(), 1U);
  victim = victims.front();
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  ASSERT_TRUE(until([&] { return job.status("recoveries") >= 1; })) << job.output();
  EXPECT_EQ(job.wait(120), 0) << job.output();
}

TEST(Traces, HaveJustTheEventsAndFieldsThatAreDocumented) {
  Job job("traces");
  const std::string folder = job.folder + "/trace";
  pid_t victim = 0;
  ASSERT_NO_FATAL_FAILURE(train_with_a_kill(job, folder, victim));
  const Table table = documented();
  ASSERT_FALSE(table.empty());
  Table seen;
  std::map<std::string, double> ends;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().filename();
    for (const auto& line : json_lines(file.path())) {
      Fields fields;
      for (const auto& [field, value] : line.items()) fields.insert(field);
      for (const char* common : {"t_ns", "event", "pid"}) {
        EXPECT_EQ(fields.erase(common), 1U) << line;
      }
      const std::string event =
          name.substr(0, name.find('-')) + ' ' + line["event"].get<std::string>();
      const auto row = table.find(event);
      ASSERT_NE(row, table.end()) << event << " is not in docs/formats/trace.md: " << line;
      EXPECT_EQ(fields, row->second) << line;
      for (const char* word : {"role", "node", "kind"}) {
        EXPECT_TRUE(!line.contains(word) || line[word].is_string()) << line;
      }
      seen[event] = fields;
      if (line["event"] == "end") ends[event] = line["t_ns"].get<double>() / 1e9;
    }
  }
  for (const auto& [event, fields] : table) {
    // These may be missing. If an agent reports a death late, the report has the cause already, and
    // there is no event `how`. The other two need etcd (tests/hosts/etcd_test.py).
    const bool is_rare = event == "scheduler how" || event == "scheduler held_up" ||
                         event == "scheduler stands_by" || event == "scheduler takeover";
    EXPECT_TRUE(seen.contains(event) || is_rare) << event;
  }
  // A scheduler exits at once when all processes have heard of the job's end.
  EXPECT_LT(ends["agent end"] - ends["scheduler end"], 2.5);
}

// How long the first recovery of a picture took, in ms.
double first_recovery_ms(const std::string& svg) {
  const std::size_t at = svg.find("Recovery 1: ");
  return at == std::string::npos ? -1 : std::atof(svg.c_str() + at + 12);
}

// The job draws its own picture out of its reports, and `holdfast timeline` one out of its traces.
TEST(Timeline, OfARealJobShowsItsDeathAndItsRecovery) {
  Job job("timeline");
  const std::string folder = job.folder + "/trace";
  pid_t victim = 0;
  ASSERT_NO_FATAL_FAILURE(train_with_a_kill(job, folder, victim));
  const std::string traced = job.folder + "/picture.svg";
  const std::string left = job.logs + "/recoveries.svg";
  EXPECT_TRUE(has(job.output(), left + " draws it")) << job.output();
  const auto drawn = job.start({HOLDFAST, "timeline", folder, "--output", traced}, {});
  EXPECT_EQ(job.wait(drawn, 30), 0) << job.output();
  const auto reports = json_lines(job.logs + "/recoveries.jsonl");
  ASSERT_EQ(reports.size(), 1U);
  const double told_ms = reports[0]["first_step_ms"].get<double>();
  for (const auto& picture : {traced, left}) {
    const auto svg = os::read_file(picture);
    ASSERT_TRUE(svg) << svg.error().what;
    for (const auto& part :
         {cat("Job ", job.name), std::string("2 ranks, 3000 steps, 1 recovery, "),
          std::string(">SIGKILL</text>"), cat('>', victim, "</text>"),
          cat(" ms. rank 1 (process ", victim)}) {
      EXPECT_TRUE(has(*svg, part)) << picture << ": " << part;
    }
    // Not equal: the line of the trace is written a moment after the time in the report.
    EXPECT_NEAR(first_recovery_ms(*svg), told_ms, 2) << picture;
  }
  // The next job in this log folder had no recovery, so the picture would be another job's.
  Job next("no-recovery");
  next.logs = job.logs;
  next.launch(toy(next, 5, {"--worker_num", "1"}));
  EXPECT_EQ(next.wait(60), 0) << next.output();
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_FALSE(has(next.output(), "draws")) << next.output();
}

TEST(Status, AsJsonTellsOfRanksAndRecoveries) {
  Job job("status-json");
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  const std::string told = job.folder + "/status";
  const auto ask = [&] {
    const auto asked = job.start(
        {"/bin/sh", "-c", cat("exec ", HOLDFAST, " status --json --job ", job.name, " > ", told)},
        {});
    EXPECT_EQ(job.wait(asked, 30), 0) << job.output();
    const auto lines = json_lines(told);
    return lines.size() == 1 ? lines.front() : nlohmann::json{};
  };
  nlohmann::json status;
  ASSERT_TRUE(until([&] {
    status = ask();
    return status.contains("recovery_reports") && !status["recovery_reports"].empty();
  })) << status;
  EXPECT_EQ(status["job"], job.name);
  EXPECT_EQ(status["recoveries"], 1);
  ASSERT_EQ(status["ranks"].size(), 2U) << status;
  for (int rank = 0; rank < 2; ++rank) {
    const auto& member = status["ranks"][static_cast<std::size_t>(rank)];
    EXPECT_EQ(member["rank"], rank) << status;
    EXPECT_EQ(member["node_id"], cat(rank)) << status;
    EXPECT_EQ(member["state"], "training") << status;
    EXPECT_GE(member["version"], 20) << status;
    EXPECT_TRUE(member["loss"].is_number()) << status;
    const auto processes = job.processes(cat("MS_NODE_ID=", rank));
    ASSERT_EQ(processes.size(), 1U);
    EXPECT_EQ(member["pid"], processes.front()) << status;
  }
  ASSERT_EQ(status["recovery_reports"].size(), 1U) << status;
  const auto& report = status["recovery_reports"][0];
  EXPECT_EQ(report["ranks"], nlohmann::json({1})) << status;
  EXPECT_EQ(report["steps_lost"], 0) << status;
  double before = 0;
  for (const char* phase : {"stop_ms", "plan_ms", "repair_ms", "resume_ms", "first_step_ms"}) {
    EXPECT_GE(report[phase].get<double>(), before) << phase << ' ' << report;
    before = report[phase].get<double>();
  }
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
}

// A pseudo-terminal; the test reads its master side.
struct Terminal {
  os::Fd master{::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)};
  std::string name;
  std::string shown;
  Terminal() {
    if (::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0) {
      name = ::ptsname(master.get());
    }
  }
  const std::string& read() {
    char bytes[4096];
    for (ssize_t got = 0; (got = ::read(master.get(), bytes, sizeof bytes)) > 0;) {
      shown.append(bytes, static_cast<std::size_t>(got));
    }
    return shown;
  }
};

TEST(Status, AnInterruptOfTheWholeJobIsNoRecovery) {
  Job job("interrupted");
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  const auto status = json_lines(job.logs + "/last_status.json");
  ASSERT_EQ(status.size(), 1U) << job.output();
  EXPECT_EQ(status[0]["recoveries"], 0);
  EXPECT_TRUE(status[0]["recovery_reports"].empty()) << status[0];
  EXPECT_TRUE(json_lines(job.logs + "/recoveries.jsonl").empty()) << job.log("scheduler.log");
}

TEST(Status, OnATerminalAnExplanationHasLinesOfAHundredColumns) {
  Job job("columns");
  std::string words;
  for (int i = 0; i < 100; ++i) words += cat(" word", i);
  std::ofstream(job.folder + "/recoveries.jsonl")
      << nlohmann::json({{"recovery", 1}, {"cause", words}}) << '\n';
  Terminal terminal;
  ASSERT_FALSE(terminal.name.empty());
  const auto said = job.start(
      {"/bin/sh", "-c", cat(HOLDFAST, " explain ", job.folder, " > ", terminal.name)}, {});
  EXPECT_EQ(job.wait(said, 30), 0) << job.output();
  ASSERT_TRUE(until([&] { return has(terminal.read(), "It was not completed."); }))
      << terminal.shown;
  std::size_t longest = 0;
  for (std::size_t at = 0; at < terminal.shown.size();) {
    const std::size_t end = std::min(terminal.shown.find("\r\n", at), terminal.shown.size());
    longest = std::max(longest, end - at);
    at = end + 2;
  }
  EXPECT_LE(longest, 100U) << terminal.shown;
  EXPECT_GT(longest, 90U) << terminal.shown;
  EXPECT_EQ(count(terminal.shown, "word"), 100U) << terminal.shown;
}

TEST(Progress, OnATerminalCountsTheRecoveriesOfTheScheduler) {
  Job job("terminal");
  Terminal terminal;
  ASSERT_FALSE(terminal.name.empty());
  std::vector<std::string> argv = {"/bin/sh",     "-c",        cat("exec \"$@\" > ", terminal.name),
                                   "sh",          MSRUN,       "--master_port",
                                   cat(job.port), "--log_dir", job.logs};
  for (const auto& word : toy(job, 1'000'000, {"--worker_num", "2"})) argv.push_back(word);
  (void)job.start(argv, {});
  ASSERT_TRUE(until([&] { return has(terminal.read(), "  2/2 ranks  0 recoveries"); }))
      << terminal.shown << job.output();
  EXPECT_TRUE(has(terminal.shown, "step ")) << terminal.shown;
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  EXPECT_TRUE(until([&] { return has(terminal.read(), "  2/2 ranks  1 recovery"); }))
      << terminal.shown;
  EXPECT_FALSE(has(terminal.shown, "1 recoveries"));
  // The new scheduler has the number of recoveries from its journal.
  ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "serves again job"); }));
  ASSERT_TRUE(job.kill("MS_NODE_ID=0"));
  EXPECT_TRUE(until([&] { return has(terminal.read(), "  2/2 ranks  2 recoveries"); }))
      << terminal.shown;
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

}  // namespace
}  // namespace holdfast::apps
