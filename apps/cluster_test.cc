// examples/hello_cluster in each of the three ways to start it, and with its scheduler killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/testing/job.h"
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

TEST(Cluster, GoesOnWithItsWorkersWhereTheSchedulerIsKilledThreeTimes) {
  constexpr int kSize = 8;
  constexpr std::size_t kRounds = 150;
  Job job("cluster-by-hand");
  const auto script =
      job.start({"/bin/bash", cat(HOLDFAST_SOURCE_DIR, "/examples/hello_cluster.sh"), HELLO,
                 "--rounds", cat(kRounds), "--period-ms", "20"},
                {cat("MS_SCHED_PORT=", job.port), "LOG_DIR=" + job.logs});
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
  EXPECT_TRUE(job.nothing_left());
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
  EXPECT_EQ(count(job.log(log_of(1)), "rank 1 of 3"), 2U);  // Two processes introduced themselves.
  EXPECT_TRUE(job.nothing_left());
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
