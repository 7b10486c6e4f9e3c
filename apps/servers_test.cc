// Parameter servers under msrun and by hand: whichever process dies, at whatever instant, the rows
// of all tables end with the same bits, as with any number of servers.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

constexpr int kServed = 300;

// Two workers and some servers; in each step each worker uses 50 keys of two tables.
std::vector<std::string> with_servers(const Job& job, int servers,
                                      std::vector<std::string> options = {},
                                      const std::vector<std::string>& more = {}) {
  options.insert(options.begin(), {"--worker_num", "2", "--server_num", cat(servers)});
  auto words = toy(job, kServed, std::move(options));
  words.insert(words.end(), {"--keys", "50"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// What both workers have written at the end: their own state, and all rows of the tables.
std::string states_of(const Job& job) {
  std::string all;
  for (const int rank : {0, 1}) {
    const auto state = os::read_file(cat(job.folder, "/out/rank-", rank));
    all += state ? *state : "none";
  }
  return all;
}

const std::string& undisturbed() {
  static const std::string states = [] {
    Job job("servers-undisturbed");
    job.launch(with_servers(job, 1));
    EXPECT_EQ(job.wait(60), 0) << job.output();
    return states_of(job);
  }();
  return states;
}

TEST(Servers, TheirNumberChangesNoBit) {
  for (const int servers : {2, 3}) {
    Job job(cat("servers-", servers));
    job.launch(with_servers(job, servers));
    ASSERT_EQ(job.wait(60), 0) << job.output();
    EXPECT_EQ(states_of(job), undisturbed()) << servers << " servers";
    EXPECT_TRUE(job.nothing_left());
  }
}

// In one job, one after the other: each kind of process dies in each phase.
TEST(Servers, AnyProcessMayDieInAnyPhase) {
  Job job("servers-die");
  job.launch(
      with_servers(job, 2, {"--allow_inject", "--max_restarts", "50"}, {"--lingers", "100000"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  double recoveries = 0;
  for (const char* phase : {"compute", "stage", "commit", "update", "between"}) {
    for (const int rank : {2, 3, 1}) {
      const std::string order = cat(HOLDFAST, " inject kill --job ", job.name, " --rank ", rank,
                                    " --phase ", phase, " >/dev/null 2>&1");
      ASSERT_TRUE(until([&] { return std::system(order.c_str()) == 0; })) << order << job.output();
      ++recoveries;
      ASSERT_TRUE(until([&] { return job.status("recoveries") == recoveries; })) << job.output();
    }
  }
  job.go();
  ASSERT_EQ(job.wait(120), 0) << job.output();
  EXPECT_EQ(states_of(job), undisturbed());
  EXPECT_TRUE(job.nothing_left());
}

TEST(Servers, AllMayDieAtOnceAndTheSchedulerToo) {
  Job job("servers-all");
  job.launch(with_servers(job, 2, {"--max_restarts", "50"}, {"--lingers", "100000"}));
  for (const int step : {5, 10, 15}) {
    ASSERT_TRUE(job.reaches(step)) << job.output();
    for (const char* who : {"MS_ROLE=MS_SCHED", "MS_NODE_ID=2", "MS_NODE_ID=3", "MS_NODE_ID=0"}) {
      EXPECT_TRUE(job.kill(who)) << who;
    }
  }
  job.go();
  ASSERT_EQ(job.wait(120), 0) << job.output();
  EXPECT_EQ(states_of(job), undisturbed());
}

TEST(Servers, StatusShowsWhatTheyHold) {
  Job job("servers-status");
  job.launch(with_servers(job, 2, {}, {"--hold", "200"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  nlohmann::json status;
  EXPECT_TRUE(until([&] {
    status = job.whole_status();
    return status["ranks"].size() == 4 && status["ranks"][3]["holds"].is_object();
  })) << status;
  EXPECT_EQ(status["servers"], 2);
  EXPECT_EQ(status["world_size"], 2);
  EXPECT_EQ(status["ranks"][1]["role"], "worker");
  EXPECT_EQ(status["ranks"][3]["role"], "server");
  EXPECT_EQ(status["ranks"][3]["holds"]["tables"][1]["name"], "sgd");
  EXPECT_GT(status["ranks"][3]["holds"]["bytes"], 0);
  job.go();
  EXPECT_EQ(job.wait(60), 0) << job.output();
}

// As document 001 starts them: the same program in every role, without an agent.
TEST(Servers, ByHandTheProgramItselfServes) {
  Job job("servers-by-hand");
  std::filesystem::create_directories(job.folder + "/out");
  const auto words = [&] {
    auto all = toy_command(job, kServed);
    all.insert(all.end(), {"--keys", "50", "--hold", "200"});
    return all;
  }();
  const auto start = [&](const char* role, const std::string& node) {
    return job.start(words, {cat("MS_ROLE=", role), "MS_WORKER_NUM=2", "MS_SERVER_NUM=2",
                             cat("MS_NODE_ID=", node), cat("MS_SCHED_PORT=", job.port)});
  };
  const std::size_t scheduler = start("MS_SCHED", "s");
  const std::size_t servers[] = {start("MS_PSERVER", "b"), start("MS_SERVER", "a")};
  const std::size_t workers[] = {start("MS_WORKER", "0"), start("MS_WORKER", "1")};
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const std::size_t surplus = start("MS_PSERVER", "c");
  EXPECT_EQ(job.wait(surplus, 60), 1);
  EXPECT_TRUE(has(job.output(), "this server is one too many")) << job.output();
  job.go();
  for (const std::size_t process : {scheduler, servers[0], servers[1], workers[0], workers[1]}) {
    EXPECT_EQ(job.wait(process, 60), 0);
  }
  EXPECT_EQ(states_of(job), undisturbed());
}

}  // namespace
}  // namespace holdfast::apps
