// examples/hello_cluster, started in each of the three ways, and with its scheduler killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "apps/testing/secure.h"
#include "base/text.h"

namespace holdfast::apps {
namespace {

std::string log_of(int rank) {
  return cat("worker_", rank, ".log");
}

std::size_t rounds_of(const Job& job, int rank) {
  return json_lines(job.logs + "/" + log_of(rank)).size();
}

// Every rank was there under its own node id and made every round once, in order, in one
// generation.
void expect_all_rounds(const Job& job, int size, std::size_t rounds) {
  for (int rank = 0; rank < size; ++rank) {
    const std::string text = job.log(log_of(rank));
    EXPECT_EQ(count(text, cat("rank ", rank, " of ", size, ": node id ", rank, ", host ")), 1U)
        << text;
    const auto lines = json_lines(job.logs + "/" + log_of(rank));
    ASSERT_EQ(lines.size(), rounds) << text;
    for (std::size_t i = 0; i < rounds; ++i) {
      EXPECT_EQ(lines[i]["round"], i + 1);
      EXPECT_EQ(lines[i]["rank"], rank);
      EXPECT_EQ(lines[i]["size"], size);
      EXPECT_EQ(lines[i]["generation"], lines[0]["generation"]);
      EXPECT_TRUE(i == 0 || lines[i]["t_ns"] > lines[i - 1]["t_ns"]);
    }
  }
}

std::vector<pid_t> workers_of(const Job& job) {
  auto all = job.processes("MS_ROLE=MS_WORKER");
  std::sort(all.begin(), all.end());
  return all;
}

void expect_to_go_on_after_three_kills_of_the_scheduler(Job& job) {
  constexpr int kSize = 8;
  constexpr std::size_t kRounds = 150;
  const auto script =
      job.start({"/bin/bash", cat(HOLDFAST_SOURCE_DIR, "/examples/hello_cluster.sh"), HELLO,
                 "--rounds", cat(kRounds), "--period-ms", "20"},
                {cat("MS_SCHED_PORT=", job.port), "LOG_DIR=" + job.logs, "MS_HCCL_CM_INIT=1"});
  ASSERT_TRUE(until([&] { return rounds_of(job, kSize - 1) >= 3; }));
  const auto workers = workers_of(job);
  EXPECT_EQ(workers.size(), static_cast<std::size_t>(kSize));
  for (int kill = 0; kill < 3; ++kill) {
    const auto before = job.processes("MS_ROLE=MS_SCHED");
    ASSERT_EQ(before.size(), 1U);
    ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
    ASSERT_TRUE(until([&] {
      const auto now = job.processes("MS_ROLE=MS_SCHED");
      return now.size() == 1 && now != before;
    }));
    const std::size_t made = rounds_of(job, 0);
    ASSERT_TRUE(until([&] { return rounds_of(job, 0) >= made + 5; })) << job.log(log_of(0));
    EXPECT_EQ(workers_of(job), workers);
  }
  EXPECT_EQ(job.wait(script, 60), 0) << job.output() << job.log("scheduler.log");
  expect_all_rounds(job, kSize, kRounds);
  // Each of the four schedulers warns about the variable, and no worker does.
  EXPECT_EQ(count(job.log("scheduler.log"), "MS_HCCL_CM_INIT has no effect"), 4U);
  EXPECT_FALSE(has(job.log(log_of(0)), "MS_HCCL_CM_INIT"));
  EXPECT_TRUE(job.nothing_left());
}

TEST(Cluster, GoesOnWithItsWorkersWhereTheSchedulerIsKilledThreeTimes) {
  Job job("cluster-by-hand");
  expect_to_go_on_after_three_kills_of_the_scheduler(job);
}

TEST(Cluster, GoesOnWhereItsSchedulerIsKilledThreeTimesUnderTls) {
  Job job("cluster-under-tls");
  const tls::Papers papers;
  for (auto& variable : tls_environment(papers)) job.environment.push_back(std::move(variable));
  expect_to_go_on_after_three_kills_of_the_scheduler(job);
  EXPECT_TRUE(has(job.log("scheduler.log"), "under TLS")) << job.log("scheduler.log");
}

// The script knows only the first process of the rank, which ended with 137, and not its successor.
TEST(Cluster, HasEndedWellWhereAKilledWorkerWasStartedAgainByHand) {
  Job job("cluster-again");
  const std::vector<std::string> hello = {HELLO, "--rounds", "100", "--period-ms", "20"};
  std::vector<std::string> command = {"/bin/bash",
                                      cat(HOLDFAST_SOURCE_DIR, "/examples/hello_cluster.sh")};
  command.insert(command.end(), hello.begin(), hello.end());
  const std::vector<std::string> common = {cat("MS_SCHED_PORT=", job.port), "MS_WORKER_NUM=2"};
  auto for_script = common;
  for_script.push_back("LOG_DIR=" + job.logs);
  const auto script = job.start(command, for_script);
  ASSERT_TRUE(until([&] { return rounds_of(job, 1) >= 3; }));
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  auto for_worker = common;
  for_worker.insert(for_worker.end(),
                    {"MS_SCHED_HOST=127.0.0.1", "MS_ROLE=MS_WORKER", "MS_NODE_ID=1"});
  const auto again = job.start(hello, for_worker);
  EXPECT_EQ(job.wait(again, 60), 0) << job.output();
  EXPECT_EQ(job.wait(script, 60), 0) << job.output() << job.log("scheduler.log");
  EXPECT_EQ(rounds_of(job, 0), 100U);
  EXPECT_TRUE(job.nothing_left());
}

// A job that has failed must not be taken for one that ended well.
TEST(Cluster, HasFailedWhereAKilledWorkerIsNotReplaced) {
  Job job("cluster-lost");
  const auto script =
      job.start({"/bin/bash", cat(HOLDFAST_SOURCE_DIR, "/examples/hello_cluster.sh"), HELLO,
                 "--rounds", "100000", "--period-ms", "20"},
                {cat("MS_SCHED_PORT=", job.port), "MS_WORKER_NUM=2", "LOG_DIR=" + job.logs,
                 "HOLDFAST_REPLACEMENT_TIMEOUT=1"});
  ASSERT_TRUE(until([&] { return rounds_of(job, 1) >= 3; }));
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  EXPECT_EQ(job.wait(script, 60), 1) << job.output() << job.log("scheduler.log");
  EXPECT_TRUE(job.processes().empty());  // The folder stays, for another try.
}

TEST(Cluster, IsStartedByMsrunToo) {
  Job job("cluster-msrun");
  job.launch({"--worker_num=4", "--join=True", HELLO, "--rounds", "5", "--period-ms", "0"});
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log(log_of(0));
  expect_all_rounds(job, 4, 5);
  EXPECT_TRUE(job.nothing_left());
}

TEST(Cluster, IsStartedByHoldfastRunToo) {
  Job job("cluster-run");
  const auto run =
      job.start({HOLDFAST, "run", "--master_port", cat(job.port), "--log_dir", job.logs,
                 "--worker_num=2", "--join=True", HELLO, "--rounds", "5", "--period-ms", "0"},
                {});
  EXPECT_EQ(job.wait(run, 60), 0) << job.output() << job.log(log_of(0));
  expect_all_rounds(job, 2, 5);
  EXPECT_TRUE(job.nothing_left());
}

// What `holdfast status` says of a job.
std::string told(Job& job) {
  const auto before = job.output().size();
  EXPECT_EQ(job.wait(job.start({HOLDFAST, "status", "--job", job.name}, {}), 30), 0);
  return job.output().substr(before);
}

// The table of `holdfast status` has no column that is empty for all ranks.
TEST(Cluster, StatusSpeaksOfNoLossWhereNobodyTrains) {
  Job job("cluster-status");
  job.launch({"--worker_num=2", "--join=True", HELLO, "--rounds", "1000000", "--period-ms", "20"});
  ASSERT_TRUE(until([&] { return job.status("version") >= 3; })) << job.output();
  const std::string cluster = told(job);
  EXPECT_TRUE(has(cluster, cat("job ", job.name, ": running, step "))) << cluster;
  EXPECT_TRUE(has(cluster, ", 2 workers, 0 recoveries\n")) << cluster;
  EXPECT_FALSE(has(cluster, "loss")) << cluster;
  Job trainer("trainer-status");
  trainer.launch(toy(trainer, 100'000'000, {"--join", "True", "--worker_num", "1"}));
  ASSERT_TRUE(until([&] { return trainer.status("version") >= 3; })) << trainer.output();
  const std::string training = told(trainer);
  EXPECT_TRUE(has(training, ", 1 worker, ")) << training;
  EXPECT_TRUE(has(training, "step       made        loss  state\n")) << training;
}

TEST(Cluster, StatusSpeaksOfNoStepsBeforeThereAreAny) {
  Job job("cluster-none");
  const auto begin = [&](const std::string& role) {
    return job.start({HELLO}, {"MS_ROLE=" + role, "MS_NODE_ID=0", "MS_WORKER_NUM=2",
                               cat("MS_SCHED_PORT=", job.port)});
  };
  begin("MS_SCHED");
  begin("MS_WORKER");
  ASSERT_TRUE(until([&] { return has(job.output(), "1 of 2 workers are here"); }));
  const std::string words = told(job);
  EXPECT_TRUE(has(words, ": waiting for workers, generation 0, 2 workers, ")) << words;
  EXPECT_TRUE(has(words, "host              state\n")) << words;
  EXPECT_FALSE(has(words, "step")) << words;
}

// A successor goes on with the round that the others are in, and no round is made twice.
TEST(Cluster, ReplacesAWorkerThatIsKilledInARound) {
  constexpr std::size_t kRounds = 100;
  Job job("cluster-worker");
  job.launch(
      {"--worker_num=3", "--join=True", HELLO, "--rounds", cat(kRounds), "--period-ms", "20"});
  ASSERT_TRUE(until([&] { return rounds_of(job, 1) >= 3; }));
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log(log_of(1));
  EXPECT_EQ(rounds_of(job, 0), kRounds);
  const auto lines = json_lines(job.logs + "/" + log_of(1));
  ASSERT_FALSE(lines.empty());
  for (std::size_t i = 1; i < lines.size(); ++i)
    EXPECT_GT(lines[i]["round"], lines[i - 1]["round"]);
  EXPECT_EQ(lines.back()["round"], kRounds);
  EXPECT_GT(lines.back()["generation"], lines.front()["generation"]);
  EXPECT_EQ(count(job.log(log_of(1)), "rank 1 of 3"), 2U);  // Printed by two processes.
  EXPECT_TRUE(job.nothing_left());
}

// A twin is a second process with the node id of a living one; a surplus worker is one more than
// the job has places. The scheduler's log and the status name both, and the process whose place the
// twin asks for. The twin waits, and exits with 0 when the job ends well.
TEST(Cluster, NamesATwinAndASurplusWorkerInTheLogAndInTheStatus) {
  Job job("cluster-twin");
  const auto begin = [&](const std::string& role, const std::string& id) {
    return job.start({HELLO, "--rounds", "12", "--period-ms", "500"},
                     {"MS_ROLE=" + role, "MS_NODE_ID=" + id, "MS_WORKER_NUM=2",
                      cat("MS_SCHED_PORT=", job.port)});
  };
  const auto scheduler = begin("MS_SCHED", "");
  const auto first = begin("MS_WORKER", "0");
  const auto second = begin("MS_WORKER", "1");
  ASSERT_TRUE(until([&] { return job.status("version") >= 1; })) << job.output();
  const auto twin = begin("MS_WORKER", "1");
  const std::string waits = cat("worker '1' (process ", job.pid(twin), " on ");
  const std::string held = cat(" waits: process ", job.pid(second), " on ");
  ASSERT_TRUE(until([&] { return has(job.output(), "scheduler: " + waits); })) << job.output();
  const auto surplus = begin("MS_WORKER", "2");
  EXPECT_EQ(job.wait(surplus, 30), 1) << job.output();
  const std::string refused = cat("worker '2' (process ", job.pid(surplus), " on ");
  EXPECT_TRUE(has(job.output(), "scheduler: " + refused)) << job.output();
  EXPECT_TRUE(has(job.output(), ") is refused: all 2 places of the job are taken")) << job.output();
  const std::string words = told(job);
  EXPECT_TRUE(has(words, waits)) << words;
  EXPECT_TRUE(has(words, held)) << words;
  EXPECT_TRUE(has(words, refused)) << words;
  EXPECT_TRUE(has(words, ") was refused: all 2 places of the job are taken")) << words;
  for (const auto process : {first, second, scheduler, twin}) {
    EXPECT_EQ(job.wait(process, 60), 0) << job.output();
  }
  EXPECT_TRUE(has(job.output(),
                  "the job has ended well (all 2 ranks have ended in good order), "
                  "and this process, of node '1', never had a place in it"))
      << job.output();
  EXPECT_EQ(count(job.output(), "scheduler: " + waits), 1U);
  EXPECT_TRUE(job.nothing_left());
}

// A job by hand with one worker too many: that worker says so, and the others make their rounds.
struct ByHand {
  std::string host;
  int size;
  std::vector<std::string> ids;              // Node ids, in the order in which they are started.
  std::map<std::string, std::string> ranks;  // The expected rank of each id that gets one.
  std::string refused;                       // The error of the one without a rank; empty: none.
};

void expect_ranks(const ByHand& given) {
  Job job("cluster-ids");
  const auto begin = [&](const std::string& role, const std::string& id) {
    return job.start({HELLO, "--rounds", "40", "--period-ms", "50"},
                     {"MS_ROLE=" + role, "MS_SCHED_HOST=" + given.host, "MS_NODE_ID=" + id,
                      cat("MS_SCHED_PORT=", job.port), cat("MS_WORKER_NUM=", given.size)});
  };
  const auto scheduler = begin("MS_SCHED", "");
  std::vector<std::size_t> seated;
  for (const auto& id : given.ids) {  // Each has registered before the next one is started.
    const auto process = begin("MS_WORKER", id);
    if (!given.ranks.contains(id)) {
      EXPECT_EQ(job.wait(process, 30), 1) << id << job.output();
      continue;
    }
    seated.push_back(process);
    const bool last = seated.size() == given.ranks.size();
    const std::string word = last ? cat("of ", given.size, ": node id ", id, ",")
                                  : cat(seated.size(), " of ", given.size, " workers are here");
    ASSERT_TRUE(until([&] { return has(job.output(), word); })) << id << job.output();
  }
  for (const auto process : seated) EXPECT_EQ(job.wait(process, 30), 0) << job.output();
  for (const auto& [id, rank] : given.ranks) {
    EXPECT_TRUE(has(job.output(), cat("rank ", rank, " of ", given.size, ": node id ", id, ",")))
        << job.output();
  }
  EXPECT_TRUE(has(job.output(), given.refused)) << job.output();
  EXPECT_EQ(job.wait(scheduler, 30), 0) << job.output();
}

TEST(Cluster, GivesRanksByNodeIdsAndNamesWhoIsOneTooMany) {
  const std::string surplus = ": this worker is one too many";
  const std::vector<ByHand> all = {
      {"127.0.0.1", 3, {"w10", "w2", "w1"}, {{"w1", "0"}, {"w2", "1"}, {"w10", "2"}}, ""},
      {"127.0.0.1", 3, {"w2", "10", "1"}, {{"1", "0"}, {"10", "1"}, {"w2", "2"}}, ""},
      {"127.0.0.1", 2, {"1", "0", "2"}, {{"0", "0"}, {"1", "1"}}, "called '2'" + surplus},
      {"127.0.0.1", 2, {"b", "c", "a"}, {{"b", "0"}, {"c", "1"}}, "called 'a'" + surplus},
      {"127.0.0.1",
       2,
       {"01", "1", "0"},
       {{"0", "0"}, {"01", "1"}},
       "node ids '01' and '1' are two names of one rank"},
      {"127.0.0.1", 1, {"-1", "0"}, {{"0", "0"}}, "MS_NODE_ID is '-1', which is no rank"},
      {"[::1]", 2, {"0", "1"}, {{"0", "0"}, {"1", "1"}}, ""}};
  for (const auto& one : all) {
    SCOPED_TRACE(one.host + " " + one.ids.front() + " " + one.refused);
    expect_ranks(one);
  }
}

TEST(Cluster, RefusesAWrongCommandLineByName) {
  Job job("cluster-options");
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--rounds", "-1"}, "--rounds is '-1'"},
      {{"--period-ms", "x"}, "--period-ms is 'x'"},
      {{"--rounds"}, "--rounds has no value"},
      {{"--round", "1"}, "there is no option --round"}};
  for (const auto& [words, why] : wrong) {
    std::vector<std::string> command = {HELLO};
    command.insert(command.end(), words.begin(), words.end());
    EXPECT_EQ(job.wait(job.start(command, {}), 10), 2);
    EXPECT_TRUE(has(job.output(), why)) << job.output();
  }
}

}  // namespace
}  // namespace holdfast::apps
