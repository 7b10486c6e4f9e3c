// Jobs whose processes are started by hand, without an agent.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"
#include "os/testing.h"

namespace holdfast::apps {
namespace {

// Without an agent the scheduler itself proves the death of a process of its host.
TEST(Scheduler, ReadmitsAWorkerThatWasStartedAgainByHand) {
  Job job("by-hand");
  std::filesystem::create_directories(job.folder + "/out");
  const std::vector<std::string> argv = {TOY,     "--steps",           "2000",
                                         "--out", job.folder + "/out", "--elements",
                                         "1000",  "--pause",           "1000"};
  // With this lease, a successor that had to wait for its end would be too late for the test.
  const std::vector<std::string> common = {"MS_WORKER_NUM=2", cat("MS_SCHED_PORT=", job.port),
                                           "MS_NODE_TIMEOUT=1000"};
  const auto begin = [&](std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    return job.start(argv, more);
  };
  const auto scheduler = begin({"MS_ROLE=MS_SCHED"});
  const auto first = begin({"MS_ROLE=MS_WORKER", "MS_NODE_ID=0"});
  const auto second = begin({"MS_ROLE=MS_WORKER", "MS_NODE_ID=1"});
  ASSERT_TRUE(job.reaches(20)) << job.output();
  job.signal(second, SIGKILL);
  EXPECT_EQ(job.wait(second, 10), 128 + SIGKILL);
  const auto third = begin({"MS_ROLE=MS_WORKER", "MS_NODE_ID=1"});
  EXPECT_EQ(job.wait(third, 60), 0) << job.output();
  EXPECT_EQ(job.wait(first, 60), 0) << job.output();
  EXPECT_EQ(job.wait(scheduler, 60), 0) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// A restarted scheduler knows from its predecessor's journal about a worker that died with the
// predecessor, or before the scheduler was back.
TEST(Scheduler, ReadmitsAWorkerThatWasKilledTogetherWithIt) {
  Job job("by-hand-together");
  const auto begin = [&](const std::string& role, const std::string& node) {
    return job.start(toy_command(job, 2000),
                     {"MS_WORKER_NUM=2", cat("MS_SCHED_PORT=", job.port), "MS_ENABLE_RECOVERY=1",
                      "MS_NODE_TIMEOUT=1000", "MS_ROLE=" + role, "MS_NODE_ID=" + node});
  };
  const auto scheduler = begin("MS_SCHED", "");
  const auto first = begin("MS_WORKER", "0");
  const auto second = begin("MS_WORKER", "a name");
  ASSERT_TRUE(job.reaches(20)) << job.output();
  for (const auto process : {scheduler, second}) {
    job.signal(process, SIGKILL);
    EXPECT_EQ(job.wait(process, 10), 128 + SIGKILL);
  }
  const auto again = begin("MS_SCHED", "");
  const auto third = begin("MS_WORKER", "a name");
  EXPECT_EQ(job.wait(third, 60), 0) << job.output();
  EXPECT_EQ(job.wait(first, 60), 0) << job.output();
  EXPECT_EQ(job.wait(again, 60), 0) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Scheduler, TellsItsWorkersWhereItIsInterruptedByHand) {
  Job job("interrupted-by-hand");
  std::filesystem::create_directories(job.folder + "/out");
  const std::vector<std::string> argv = {
      TOY, "--steps", "1000000", "--out", job.folder + "/out", "--pause", "1000"};
  const std::vector<std::string> common = {"MS_WORKER_NUM=1", cat("MS_SCHED_PORT=", job.port),
                                           "MS_NODE_ID=0"};
  auto as = [&](const char* role) {
    auto more = common;
    more.push_back(role);
    return job.start(argv, more);
  };
  const auto scheduler = as("MS_ROLE=MS_SCHED");
  const auto worker = as("MS_ROLE=MS_WORKER");
  ASSERT_TRUE(job.reaches(5)) << job.output();
  job.signal(scheduler, SIGTERM);
  EXPECT_EQ(job.wait(scheduler, 10), 128 + SIGTERM);
  EXPECT_EQ(job.wait(worker, 10), 1) << job.output();
  EXPECT_TRUE(has(job.output(), "the scheduler was interrupted by signal 15")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// A stopped process could wake up and write into its successor's arena. So it is ended before the
// successor opens the arena.
TEST(Scheduler, GivesThePlaceOfAStoppedWorkerAwayAndItsSuccessorEndsIt) {
  Job job("stopped-by-hand");
  const auto begin = [&](const std::string& role, const std::string& node) {
    return job.start(toy_command(job, 3000),
                     {"MS_WORKER_NUM=2", cat("MS_SCHED_PORT=", job.port), "MS_NODE_TIMEOUT=3",
                      "MS_ROLE=" + role, "MS_NODE_ID=" + node});
  };
  const auto scheduler = begin("MS_SCHED", "");
  const auto first = begin("MS_WORKER", "0");
  const auto second = begin("MS_WORKER", "1");
  ASSERT_TRUE(job.reaches(20)) << job.output();
  job.signal(second, SIGSTOP);
  const auto third = begin("MS_WORKER", "1");
  EXPECT_EQ(job.wait(second, 60), 128 + SIGKILL) << job.output();
  EXPECT_EQ(job.wait(third, 60), 0) << job.output();
  EXPECT_EQ(job.wait(first, 60), 0) << job.output();
  EXPECT_EQ(job.wait(scheduler, 60), 0) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// The agent gives the scheduler a run id. So the journal of an older job of the same name is not
// used, not even by the second scheduler of a run whose first died before it had stored anything.
TEST(Scheduler, TakesBackTheJournalOfItsOwnRunOnly) {
  Job job("runs");
  std::filesystem::create_directories(job.folder + "/journal");
  job.environment.push_back("MS_RECOVERY_PATH=" + job.folder + "/journal");
  job.environment.push_back(cat("MS_SCHED_PORT=", job.port));
  job.environment.push_back("MS_WORKER_NUM=1");
  const auto serve = [&](int run, int attempt) {
    return job.start(toy_command(job, 1'000'000), {"MS_ROLE=MS_SCHED", cat("HOLDFAST_RUN=", run),
                                                   cat("HOLDFAST_ATTEMPT=", attempt)});
  };
  const auto first = serve(5, 1);
  const auto worker = job.start(toy_command(job, 1'000'000), {"MS_ROLE=MS_WORKER", "MS_NODE_ID=0"});
  ASSERT_TRUE(job.reaches(5)) << job.output();
  job.signal(first, SIGKILL);
  EXPECT_EQ(job.wait(first, 10), 128 + SIGKILL);
  const auto again = serve(5, 2);
  EXPECT_TRUE(until([&] { return has(job.output(), "serves again job"); }, 20)) << job.output();
  for (const auto process : {worker, again}) {
    job.signal(process, SIGKILL);
    EXPECT_EQ(job.wait(process, 10), 128 + SIGKILL);
  }
  const auto before = job.output().size();
  const auto other = serve(6, 2);
  const auto later = [&] { return job.output().substr(before); };
  EXPECT_TRUE(until([&] { return has(later(), "serves job"); }, 20)) << later();
  EXPECT_FALSE(has(later(), "serves again")) << later();
  job.signal(other, SIGKILL);
  EXPECT_EQ(job.wait(other, 10), 128 + SIGKILL);
}

// A worker without a scheduler gives up, and prints why.
void expect_no_scheduler(Job& job) {
  const auto worker = job.start(
      toy_command(job, 10), {"MS_ROLE=MS_WORKER", "MS_WORKER_NUM=1", "MS_NODE_ID=0",
                             cat("MS_SCHED_PORT=", job.port), "HOLDFAST_SCHEDULER_TIMEOUT=1.5"});
  EXPECT_EQ(job.wait(worker, 30), 1);
  EXPECT_TRUE(
      has(job.output(), cat("no scheduler answers at 127.0.0.1:", job.port, " within 1.5 s (")))
      << job.output();
}

TEST(Worker, SaysThatNoSchedulerAnswers) {
  Job job("no-scheduler");
  expect_no_scheduler(job);
  EXPECT_TRUE(has(job.output(), "MS_SCHED_PORT")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Worker, ThatComesAfterTheJobsEndHearsThatNobodyServesAnyMore) {
  Job job("late-by-hand");
  std::vector<std::size_t> all;
  for (const char* role : {"MS_SCHED", "MS_WORKER"}) {
    all.push_back(
        job.start(toy_command(job, 3), {cat("MS_ROLE=", role), "MS_WORKER_NUM=1", "MS_NODE_ID=0",
                                        cat("MS_SCHED_PORT=", job.port)}));
  }
  for (const auto process : all) EXPECT_EQ(job.wait(process, 60), 0) << job.output();
  expect_no_scheduler(job);
  EXPECT_TRUE(has(job.output(), cat("cannot connect to 127.0.0.1:", job.port,
                                    ": Connection refused; no job ", job.name, " is on this host")))
      << job.output();
  EXPECT_TRUE(has(job.output(), "it has ended, or it has not begun. Start it")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Worker, WithoutATokenHearsWhoeverListens) {
  Job job("tokenless-by-hand");
  const os::Fd other = os::listening_at(job.port, 1);
  expect_no_scheduler(job);
  EXPECT_TRUE(has(job.output(), "whoever listens there does not answer as a scheduler does"))
      << job.output();
  EXPECT_TRUE(has(job.output(), "set HOLDFAST_TOKEN_FILE")) << job.output();
}

TEST(Worker, SaysThatWhoeverListensIsNoScheduler) {
  Job job("other-server");
  const os::Fd other = os::listening_at(job.port, 1);
  const std::string token = job.folder + "/token";
  ASSERT_TRUE(os::write_file_atomically(token, "0123456789abcdef"));
  job.environment.push_back("HOLDFAST_TOKEN_FILE=" + token);
  expect_no_scheduler(job);
  EXPECT_TRUE(has(job.output(), "does not answer as a scheduler does")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// The worker must not wait for a connection: nobody has the address 192.0.2.1 (RFC 5737).
TEST(Worker, OfASchedulerElsewhereIsToldAtOnceThatItNeedsAToken) {
  Job job("elsewhere-by-hand");
  (void)job.start(toy_command(job, 10),
                  {"MS_ROLE=MS_WORKER", "MS_WORKER_NUM=1", "MS_SCHED_HOST=192.0.2.1",
                   cat("MS_SCHED_PORT=", job.port)});
  EXPECT_TRUE(until([&] { return has(job.output(), "the scheduler is on another host"); }, 10))
      << job.output();
  EXPECT_TRUE(has(job.output(), "HOLDFAST_TOKEN_FILE")) << job.output();
}

TEST(Scheduler, SaysThatItsPortIsTaken) {
  Job job("port-by-hand");
  const os::Fd other = os::listening_at(job.port, 1);
  const auto scheduler = job.start(toy_command(job, 10), {"MS_ROLE=MS_SCHED", "MS_WORKER_NUM=1",
                                                          cat("MS_SCHED_PORT=", job.port)});
  EXPECT_EQ(job.wait(scheduler, 30), 1);
  EXPECT_TRUE(has(job.output(), cat("cannot listen on 127.0.0.1:", job.port))) << job.output();
  EXPECT_TRUE(has(job.output(), "another process has this port")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Scheduler, ThatCanNotKeepItsJournalLeavesNothing) {
  Job job("journal-by-hand");
  const auto scheduler = job.start(
      toy_command(job, 10), {"MS_ROLE=MS_SCHED", "MS_WORKER_NUM=1", cat("MS_SCHED_PORT=", job.port),
                             "MS_RECOVERY_PATH=/proc/no"});
  EXPECT_EQ(job.wait(scheduler, 30), 1);
  EXPECT_TRUE(has(job.output(), "MS_RECOVERY_PATH is '/proc/no'")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// With different numbers, the ranks would not agree on what they train.
TEST(Worker, WithAnotherNumberOfWorkersThanItsSchedulerEndsTheJob) {
  Job job("world-by-hand");
  const auto begin = [&](const char* role, const char* workers) {
    return job.start(toy_command(job, 10), {role, cat("MS_WORKER_NUM=", workers), "MS_NODE_ID=0",
                                            cat("MS_SCHED_PORT=", job.port)});
  };
  const auto scheduler = begin("MS_ROLE=MS_SCHED", "1");
  const auto worker = begin("MS_ROLE=MS_WORKER", "2");
  EXPECT_EQ(job.wait(worker, 30), 1) << job.output();
  EXPECT_EQ(job.wait(scheduler, 30), 1) << job.output();
  EXPECT_TRUE(has(job.output(), "MS_WORKER_NUM is 2 for node '0', but the job has 1 workers"))
      << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Worker, MakesNothingForALifelineThatNoAgentMade) {
  Job job("lifeline-by-hand");
  for (const char* name : {"/line", "/nobody/line"}) {
    const std::string line = job.folder + name;
    const auto worker = job.start(toy_command(job, 10), {"HOLDFAST_LIFELINE=" + line});
    EXPECT_EQ(job.wait(worker, 30), 1) << job.output();
    EXPECT_TRUE(has(job.output(), cat("HOLDFAST_LIFELINE is '", line, '\''))) << job.output();
    EXPECT_FALSE(std::filesystem::exists(line));
  }
  EXPECT_FALSE(std::filesystem::exists(job.folder + "/nobody"));
}

TEST(Worker, SaysWhatIsWrongWithItsSettings) {
  Job job("settings-by-hand");
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"MS_ROLE=MS_BOSS", "MS_ROLE is 'MS_BOSS'"},
      {"MS_SCHED_PORT=0", "MS_SCHED_PORT is '0'"},
      {"MS_WORKER_NUM=none", "MS_WORKER_NUM is 'none'"},
      {"MS_NODE_TIMEOUT=soon", "MS_NODE_TIMEOUT is 'soon'"},
      {"HOLDFAST_PROTECT=yes", "HOLDFAST_PROTECT is 'yes'"},
      {"HOLDFAST_AGENT=garbage", "HOLDFAST_AGENT is 'garbage'"},
      {"HOLDFAST_TRACE=/proc/no", "HOLDFAST_TRACE is '/proc/no'"},
      {"MS_WORKER_NUM=2", "MS_WORKER_NUM is 2, but MS_ROLE is not set"},
      {"OMPI_COMM_WORLD_SIZE=3",
       "start the program with `msrun --worker_num=3` in place of mpirun"},
      {"PMI_SIZE=2", "one of 2 (PMI_SIZE=2), each of which would train alone"},
      {"HOLDFAST_SPARE_FD=99", "HOLDFAST_SPARE_FD is 99, but MS_ROLE is not set"},
      {"HOLDFAST_SPARES=1", "HOLDFAST_SPARES, which is no setting"}};
  for (const auto& [setting, words] : wrong) {
    const auto worker = job.start(toy_command(job, 10), {setting});
    EXPECT_EQ(job.wait(worker, 30), 1) << setting;
    EXPECT_TRUE(has(job.output(), words)) << job.output();
  }
  EXPECT_TRUE(job.nothing_left());
}

}  // namespace
}  // namespace holdfast::apps
