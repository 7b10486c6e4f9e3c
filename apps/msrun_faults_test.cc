// Faults of real processes under msrun beyond a plain death: stopped ones, wrapped ones, a dead
// agent, several agents, a scheduler that is away for a while.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"
#include "os/idle.h"

namespace holdfast::apps {
namespace {

// A lease so long that no fault in these tests is noticed by its end.
constexpr const char* kLongLease = "MS_NODE_TIMEOUT=1000";

// A toy trainer that is started by a shell which stays: the agent's child is the shell.
std::vector<std::string> wrapped_toy(const Job& job, int steps, std::vector<std::string> options,
                                     const std::string& before = "") {
  options.insert(options.begin(), {"--join", "True"});
  std::string line = before;
  for (const auto& word : toy_command(job, steps)) line += word + ' ';
  for (const auto& word : {std::string("sh"), std::string("-c"), line + "; exit $?"}) {
    options.push_back(word);
  }
  return options;
}

TEST(Stopped, WorkerIsReplacedLongBeforeItsLeaseRunsOut) {
  for (const char* spares : {"0", "1"}) {
    Job job(cat("stopped-", spares));
    job.environment.emplace_back(kLongLease);
    job.launch(toy(job, 3000, {"--worker_num", "2", "--spares", spares}));
    ASSERT_TRUE(job.reaches(20)) << job.output();
    ASSERT_TRUE(job.kill("MS_NODE_ID=1", SIGSTOP));
    EXPECT_EQ(job.wait(120), 0) << job.output();
    const auto reports = os::read_file(job.logs + "/recoveries.jsonl");
    ASSERT_TRUE(reports) << job.output();
    EXPECT_TRUE(has(*reports, "was stopped by a signal and ended by its agent")) << *reports;
    EXPECT_TRUE(job.nothing_left());
  }
}

// A user may remove the log folder of a job that runs.
TEST(Msrun, ReplacesAWorkerWhereTheFolderOfTheLogsIsGone) {
  for (const char* spares : {"0", "1"}) {
    Job job(cat("no-logs-", spares));
    job.launch(toy(job, 1500, {"--worker_num", "2", "--spares", spares}));
    ASSERT_TRUE(job.reaches(20)) << job.output();
    std::filesystem::remove_all(job.logs);
    ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
    EXPECT_EQ(job.wait(120), 0) << job.output();
    EXPECT_EQ(count(job.output(), "nothing can be written in " + job.logs), 1U) << job.output();
    EXPECT_TRUE(job.nothing_left());
  }
}

// The arenas are removed together with all workers: no copy of the state is left.
TEST(Msrun, EndsWithoutSuccessWhereNoArenaIsLeftAfterAStep) {
  Job job("all-lost");
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  const auto workers = job.processes("MS_ROLE=MS_WORKER");
  ASSERT_EQ(workers.size(), 2U);
  for (const int rank : {0, 1}) {
    const std::string arena =
        cat("/dev/shm/holdfast-", ::geteuid(), '/', job.name, "/rank-", rank, ".arena");
    EXPECT_TRUE(std::filesystem::remove(arena)) << arena;
  }
  for (const pid_t worker : workers) ::kill(worker, SIGKILL);
  const int code = job.wait(120);  // A worker's exit code, if the agent knows it by then.
  EXPECT_TRUE(code > 0) << code << job.output();
  EXPECT_TRUE(has(job.output(), "the state can not be recovered: it was at step ")) << job.output();
  EXPECT_TRUE(has(job.output(), "from the newest checkpoint that the program itself has saved"))
      << job.output();
  const std::string reports = job.log("recoveries.jsonl");
  EXPECT_TRUE(has(reports, R"("steps_lost":null)")) << reports << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Stopped, WorkerBehindAWrapperIsReplacedToo) {
  Job job("stopped-wrapped");
  job.environment.emplace_back(kLongLease);
  job.launch(wrapped_toy(job, 3000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  ASSERT_TRUE(job.kill("MS_NODE_ID=1", SIGSTOP));  // Stops the newest process: not the shell.
  EXPECT_EQ(job.wait(120), 0) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Stopped, SchedulerIsReplaced) {
  Job job("stopped-scheduler");
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED", SIGSTOP));
  EXPECT_TRUE(until([&] { return has(job.log("scheduler.log"), "serves again job"); }, 60));
  // The job still recovers from a later fault.
  ASSERT_TRUE(job.kill("MS_NODE_ID=0"));
  EXPECT_TRUE(until([&] { return job.status("recoveries") >= 1; })) << job.output();
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

TEST(Stopped, AllOfTheJobLongerThanItsLeaseGoesOnAsIfNothingHadBeen) {
  Job job("stopped-whole");
  job.environment.emplace_back("MS_NODE_TIMEOUT=8");
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  // The agent is stopped first, since it would end the others, and is woken last.
  auto all = job.processes();
  const auto agent = std::find(all.begin(), all.end(), job.pid(0));
  if (agent != all.end()) all.erase(agent);
  all.insert(all.begin(), job.pid(0));
  for (const pid_t pid : all) ::kill(pid, SIGSTOP);
  const auto since = std::chrono::steady_clock::now();
  const double before = job.status("version");  // The scheduler is stopped, and does not answer.
  EXPECT_EQ(before, -1);
  EXPECT_TRUE(
      until([&] { return std::chrono::steady_clock::now() > since + std::chrono::seconds(10); }));
  std::reverse(all.begin(), all.end());
  for (const pid_t pid : all) ::kill(pid, SIGCONT);
  const auto step = job.status("version");
  EXPECT_TRUE(job.reaches(step + 100)) << job.output();
  EXPECT_EQ(job.status("recoveries"), 0) << job.log("scheduler.log");
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

TEST(WrappedSpare, IsNoLongerIdleOnceItHasAPlace) {
  Job job("wrapped-spare");
  job.launch(wrapped_toy(job, 1'000'000, {"--worker_num", "2", "--spares", "1"}));
  const auto idle = [](pid_t pid) { return ::sched_getscheduler(pid) == SCHED_IDLE; };
  // The spare is two processes: the wrapper, and the toy that it starts.
  const auto spares = [&job] { return job.processes("HOLDFAST_SPARE_FD=3"); };
  std::vector<pid_t> promoted;
  if (!os::may_undo_idle()) GTEST_SKIP() << "this user may not set a process back from idle";
  ASSERT_TRUE(until([&] {  // Until the spare is ready.
    promoted = spares();
    return promoted.size() >= 2 && std::all_of(promoted.begin(), promoted.end(), idle);
  })) << job.output();
  ASSERT_TRUE(job.reaches(20)) << job.output();
  ASSERT_TRUE(job.kill("MS_NODE_ID=0"));
  ASSERT_TRUE(until([&] { return job.status("recoveries") >= 1; })) << job.output();
  EXPECT_TRUE(std::none_of(promoted.begin(), promoted.end(), idle));
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

// The processor is kept busy by the ranks and two other processes, which leave no idle time.
TEST(Spare, GetsReadyOnABusyMachineAsDoesItsSuccessor) {
  if (!os::may_undo_idle()) GTEST_SKIP() << "no spare of this user is idle";
  Job job("busy-spare");
  cpu_set_t all;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(0, &one);
  ASSERT_EQ(::sched_getaffinity(0, sizeof(all), &all), 0);
  if (CPU_ISSET(0, &all) == 0) GTEST_SKIP() << "the first processor is not for this process";
  ::sched_setaffinity(0, sizeof(one), &one);
  std::atomic<bool> over = false;
  std::thread busy([&over] {
    while (!over) continue;
  });
  std::thread busy_too([&over] {
    while (!over) continue;
  });
  job.launch(toy(job, 1'000'000, {"--worker_num", "2", "--spares", "1"}));
  std::set<pid_t> seen;
  const auto another_is_ready = [&] {
    for (const pid_t pid : job.processes("HOLDFAST_SPARE_FD=3")) {
      const bool is_ready = ::sched_getscheduler(pid) == SCHED_IDLE;
      if (is_ready && seen.insert(pid).second) return true;
    }
    return false;
  };
  EXPECT_TRUE(job.reaches(5)) << job.output();
  EXPECT_TRUE(until(another_is_ready, 20)) << job.output();
  EXPECT_TRUE(job.kill("MS_NODE_ID=0"));
  EXPECT_TRUE(until(another_is_ready, 20)) << job.output();
  over = true;
  busy.join();
  busy_too.join();
  ::sched_setaffinity(0, sizeof(all), &all);
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

TEST(KilledAgent, TakesWrappedProcessesWithIt) {
  Job job("killed-agent-wrapped");
  job.launch(wrapped_toy(job, 1'000'000, {"--worker_num", "2", "--spares", "1"}));
  ASSERT_TRUE(job.reaches(5)) << job.output();
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(until([&] { return job.processes().empty(); }, 20));
  const auto clean = job.start({HOLDFAST, "clean"}, {});
  EXPECT_EQ(job.wait(clean, 30), 0);
  EXPECT_TRUE(job.nothing_left());
}

TEST(KilledAgent, LeavesToCleanWhoDidNotHeedIt) {
  Job job("killed-agent-orphan");
  // In a session of its own: no signal to the worker's group reaches it.
  job.launch(wrapped_toy(job, 1'000'000, {"--worker_num", "1"}, "setsid sleep 1000 & "));
  ASSERT_TRUE(job.reaches(5)) << job.output();
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  ASSERT_TRUE(
      until([&] { return job.processes().size() == 2; }, 20));  // The scheduler and a worker.
  // While the scheduler exits, its lock is still held though it is not seen to run. So repeat.
  EXPECT_TRUE(until(
      [&] {
        const auto dry = job.start({HOLDFAST, "clean", "--dry-run"}, {});
        EXPECT_EQ(job.wait(dry, 30), 0);
        return has(job.output(), cat("which the dead agent of job ", job.name, " left behind"));
      },
      20))
      << job.output();
  EXPECT_EQ(job.processes().size(), 2U);
  const auto clean = job.start({HOLDFAST, "clean"}, {});
  EXPECT_EQ(job.wait(clean, 30), 0);
  EXPECT_TRUE(job.nothing_left());
}

TEST(KilledAgent, AnotherOneContinuesItsJobWithTheSameBits) {
  const int steps = 1500;
  Job undisturbed("undisturbed");
  undisturbed.launch(toy(undisturbed, steps, {"--worker_num", "2"}));
  ASSERT_EQ(undisturbed.wait(120), 0) << undisturbed.output();
  Job job("continued");
  job.launch(toy(job, steps, {"--worker_num", "2", "--spares", "1"}));
  for (std::size_t launcher = 0; launcher < 3; ++launcher) {
    ASSERT_TRUE(job.reaches(200.0 * static_cast<double>(launcher + 1))) << job.output();
    ASSERT_TRUE(job.kill("MS_NODE_ID=1"));  // The successor has a higher attempt number.
    ASSERT_TRUE(until([&] { return job.status("recoveries") >= 1; })) << job.output();
    job.signal(launcher, SIGKILL);
    EXPECT_EQ(job.wait(launcher, 60), 128 + SIGKILL);
    job.launch(toy(job, steps, {"--worker_num", "2", "--spares", "1", "--continue"}));
  }
  EXPECT_EQ(job.wait(3, 120), 0) << job.output();
  for (const char* rank : {"/out/rank-0", "/out/rank-1"}) {  // Equal to the last bit.
    const auto expected = os::read_file(undisturbed.folder + rank);
    const auto found = os::read_file(job.folder + rank);
    ASSERT_TRUE(expected && found) << rank;
    EXPECT_EQ(*found, *expected) << rank;
  }
  EXPECT_TRUE(has(job.log("scheduler.log"), "serves again job")) << job.log("scheduler.log");
  EXPECT_TRUE(job.nothing_left());
}

TEST(KilledAgent, AWrongCommandToContinueItsJobLosesNothing) {
  Job job("continued-wrongly");
  job.launch(toy(job, 600, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(100)) << job.output();
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  job.launch(toy(job, 601, {"--worker_num", "2", "--continue"}));
  EXPECT_EQ(job.wait(1, 60), 2);
  EXPECT_TRUE(has(job.output(), "runs another program, or with other arguments")) << job.output();
  job.launch(toy(job, 600, {"--worker_num", "3", "--continue", "--max_restarts", "0"}));
  EXPECT_NE(job.wait(2, 60), 0);
  EXPECT_TRUE(has(job.output(), "is of a job with 2 workers")) << job.output();
  EXPECT_TRUE(has(job.output(), "is kept: --continue goes on with it")) << job.output();
  job.launch(toy(job, 600, {"--worker_num", "2", "--continue"}));
  EXPECT_EQ(job.wait(3, 60), 0) << job.output();
  EXPECT_TRUE(has(job.log("scheduler.log"), "serves again job")) << job.log("scheduler.log");
  EXPECT_TRUE(job.nothing_left());
}

TEST(KilledAgent, IsNotContinuedWhereNothingIsLeft) {
  Job job("not-continued");
  job.launch(toy(job, 10, {"--continue"}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(has(job.output(), cat("nothing is left on this host of job ", job.name)))
      << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// Two agents on one host: their workers share memory, and their logs are in one folder.
TEST(SeveralAgents, ReplaceTheirOwnAndEndTogether) {
  Job job("two-agents");
  job.environment.emplace_back(kLongLease);
  const auto agent = [&](const char* node_rank) {
    auto argv = toy(job, 4000,
                    {"--worker_num", "4", "--local_worker_num", "2", "--spares", "1", "--node_rank",
                     node_rank, "--log_dir", job.logs, "--master_port", cat(job.port)});
    argv.insert(argv.begin(), MSRUN);
    return job.start(argv, {});
  };
  const auto first = agent("0");
  const auto second = agent("1");
  double recoveries = 0;
  for (const char* victim : {"MS_NODE_ID=1", "MS_NODE_ID=3", "MS_ROLE=MS_SCHED", "MS_NODE_ID=2"}) {
    ASSERT_TRUE(job.reaches(20)) << job.output();
    const bool worker = has(victim, "NODE");
    ASSERT_TRUE(job.kill(victim)) << victim << job.output();
    if (worker) ++recoveries;
    EXPECT_TRUE(until([&] { return job.status("recoveries") >= recoveries; })) << job.output();
  }
  EXPECT_EQ(job.wait(first, 120), 0) << job.output();
  EXPECT_EQ(job.wait(second, 120), 0) << job.output();
  for (const char* log : {"scheduler.log", "worker_0.log", "worker_3.log", "spare_0.log",
                          "spare_1_0.log", "recoveries.jsonl"}) {
    EXPECT_TRUE(std::filesystem::exists(cat(job.logs, '/', log))) << log;
  }
  EXPECT_TRUE(job.nothing_left());
}

TEST(SeveralAgents, OfOneNodeRankDoNotShareAFolder) {
  Job job("two-of-one-rank");
  const auto agent = [&](const char* node_rank) {
    auto argv = toy(job, 1'000'000,
                    {"--worker_num", "2", "--local_worker_num", "1", "--node_rank", node_rank,
                     "--log_dir", job.logs, "--master_port", cat(job.port)});
    argv.insert(argv.begin(), MSRUN);
    return job.start(argv, {});
  };
  const auto first = agent("0");
  const auto second = agent("1");
  ASSERT_TRUE(job.reaches(5)) << job.output();
  EXPECT_EQ(job.wait(agent("1"), 60), 2);
  EXPECT_TRUE(has(job.output(), cat("another msrun of this job with --node_rank=1 writes its ",
                                    "logs (process ", job.pid(second), ')')))
      << job.output();
  job.signal(first, SIGINT);
  EXPECT_EQ(job.wait(first, 60), 128 + SIGINT);
  EXPECT_NE(job.wait(second, 60), 0);
  EXPECT_TRUE(job.nothing_left());
}

TEST(SeveralAgents, AFailureOfOneEndsTheOther) {
  Job job("two-agents-fail");
  const auto agent = [&](const char* node_rank) {
    auto argv =
        toy(job, 1'000'000,
            {"--worker_num", "2", "--local_worker_num", "1", "--max_restarts", "0", "--node_rank",
             node_rank, "--log_dir", job.logs + node_rank, "--master_port", cat(job.port)});
    argv.insert(argv.begin(), MSRUN);
    return job.start(argv, {});
  };
  // Starts the agent without a scheduler first: in real jobs it may be the quicker one.
  const auto second = agent("1");
  ASSERT_TRUE(until([&] { return !job.processes("MS_NODE_ID=1").empty(); })) << job.output();
  const auto first = agent("0");
  ASSERT_TRUE(job.reaches(20)) << job.output();
  // With --max_restarts=0, the first death of a worker ends its agent.
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  EXPECT_NE(job.wait(second, 60), 0) << job.output();
  EXPECT_NE(job.wait(first, 60), 0) << job.output();
  EXPECT_TRUE(has(job.output(), "worker 1 was killed by signal 9")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// All lines of a trace folder.
std::vector<nlohmann::json> trace_of(const std::string& folder) {
  std::vector<nlohmann::json> lines;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    for (auto& line : json_lines(file.path())) lines.push_back(std::move(line));
  }
  return lines;
}

// Without protection the survivors could only go on from the remains of the failed step.
TEST(KilledWorker, EndsAJobWithoutProtection) {
  Job job("unprotected");
  job.environment.push_back("HOLDFAST_PROTECT=0");
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(5)) << job.output();
  ASSERT_TRUE(job.kill("MS_ROLE=MS_WORKER"));
  EXPECT_NE(job.wait(), 0) << job.output();
  EXPECT_TRUE(has(job.output(), "HOLDFAST_PROTECT is 0, so no step is kept")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// The agent is stopped meanwhile, so that nobody starts another scheduler before the ranks have
// made steps without one.
TEST(KilledScheduler, DelaysNoStep) {
  Job job("scheduler-away");
  const std::string traces = job.folder + "/trace";
  job.environment.push_back("HOLDFAST_TRACE=" + traces);
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(100)) << job.output();
  const auto steps_of = [&](int rank) {
    const auto lines = trace_of(traces);
    return std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line["event"] == "step" && line["rank"] == rank;
    });
  };
  const auto scheduler = job.processes("MS_ROLE=MS_SCHED");
  ASSERT_EQ(scheduler.size(), 1U);
  ::kill(job.pid(0), SIGSTOP);
  ::kill(scheduler.front(), SIGKILL);
  ASSERT_TRUE(until([&] { return job.processes("MS_ROLE=MS_SCHED").empty(); }));
  // Two steps may have been under way. A step that needs the scheduler would never end.
  for (const int rank : {0, 1}) {
    const auto before = steps_of(rank);
    EXPECT_TRUE(until([&] { return steps_of(rank) >= before + 10; })) << "rank " << rank;
  }
  ::kill(job.pid(0), SIGCONT);
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "serves again job"); }));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

}  // namespace
}  // namespace holdfast::apps
