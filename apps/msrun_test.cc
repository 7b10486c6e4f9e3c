// msrun and holdfast as a user runs them: real processes, killed on purpose.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/testing/job.h"
#include "base/text.h"
#include "config/settings.h"
#include "os/fd.h"
#include "os/files.h"
#include "os/host.h"
#include "os/testing.h"

namespace holdfast::apps {
namespace {

// The programs of these tests never call init(). So their scheduler's process becomes a `sleep`,
// which the agent ends with the job.
constexpr const char* kStuckScheduler = "[ $MS_ROLE = MS_SCHED ] && exec sleep 1000; ";

TEST(Msrun, SaysWhichProgramItDoesNotFind) {
  Job job("no-program");
  job.launch({"--join", "True", "no-such-program"});
  EXPECT_EQ(job.wait(), 127);
  EXPECT_TRUE(has(job.output(), "no program 'no-such-program'")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, SaysSoInTheForegroundEvenWhereTheJobGoesToTheBackground) {
  Job job("no-program-background");
  job.launch({"no-such-program"});
  EXPECT_EQ(job.wait(), 127);
  EXPECT_TRUE(has(job.output(), "no program 'no-such-program'")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, GivesUpOnAProgramThatFailsEveryTime) {
  Job job("fails");
  job.launch({"--worker_num", "2", "--join", "True", "--max_restarts", "2", "sh", "-c",
              std::string(kStuckScheduler) + "echo the reason why; exit 3"});
  EXPECT_EQ(job.wait(), 3);
  const std::string output = job.output();
  EXPECT_TRUE(has(output, "exited with code 3")) << output;
  EXPECT_TRUE(has(output, "--max_restarts=2")) << output;
  EXPECT_TRUE(has(output, "the reason why")) << output;  // From the end of the worker's log.
  EXPECT_TRUE(has(output, job.logs + "/worker_")) << output;
  const auto starts = std::max(count(job.log("worker_0.log"), "the reason why"),
                               count(job.log("worker_1.log"), "the reason why"));
  EXPECT_EQ(starts, 3U);
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, RefusesAPortThatIsTaken) {
  Job job("port");
  const os::Fd other = os::listening_at(job.port, 1);
  job.launch({"--worker_num", "1", "sh", "-c", "echo started"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(has(job.output(), cat(job.port))) << job.output();
  EXPECT_TRUE(has(job.output(), "--master_port")) << job.output();
  EXPECT_TRUE(job.log("worker_0.log").empty());
  EXPECT_TRUE(job.nothing_left());
}

// The port of a job that was killed a moment before may be free only a moment later.
TEST(Msrun, TakesAPortThatIsFreeInAMoment) {
  Job job("dying-port");
  os::Fd other = os::listening_at(job.port, 1);
  job.launch({"--worker_num", "1", "--join=True", "true"});
  EXPECT_TRUE(until([&] { return has(job.output(), cat("port ", job.port)); }, 10));
  other = os::Fd();
  EXPECT_EQ(job.wait(), 0) << job.output();
}

TEST(Msrun, RefusesAWrongSettingBeforeAnythingStarts) {
  Job job("setting");
  job.environment.push_back("HOLDFAST_UPDATE_THREADS=99");
  job.launch({"--worker_num", "1", "sh", "-c", "echo started"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(has(job.output(), "HOLDFAST_UPDATE_THREADS is '99'")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// Variables that msrun sets itself may be set before, by a shell or by an outer job.
TEST(Msrun, LetsWhatItSetsItselfCountForNothingInItsEnvironment) {
  Job job("overridden");
  for (const auto name : config::given_by_msrun()) job.environment.push_back(cat(name, "=foo"));
  job.launch(toy(job, 10, {"--worker_num", "1"}));
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_FALSE(has(job.output(), "foo")) << job.output();
}

TEST(Msrun, EndsWellWhereAllWorkersDoWithoutTraining) {
  Job job("no-training");
  job.launch({"--worker_num", "2", "--join", "True", "sh", "-c", "echo done"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(job.log("worker_1.log"), "done\n");
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, EndsItsSchedulerWhereNobodyAskedForARank) {
  Job job("no-rank");
  std::string line = "[ \"$MS_ROLE\" = MS_SCHED ] && exec";
  for (const auto& word : toy_command(job, 1)) line += " " + word;
  job.launch({"--worker_num", "2", "--join", "True", "sh", "-c", line + "; echo done"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  // The scheduler ends the job itself. Else the agent would end the scheduler, seconds later.
  EXPECT_TRUE(has(job.log("scheduler.log"), "none has asked for a rank"))
      << job.log("scheduler.log");
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, LeavesTheProgramsArgumentsAlone) {
  Job job("arguments");
  job.launch({"--worker_num", "1", "--join", "True", "--", "sh", "-c", "echo \"$@\"", "sh",
              "--join", "--", "-x"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(job.log("worker_0.log"), "--join -- -x\n");
  Job again("arguments-run");
  const auto run = again.start(
      {HOLDFAST, "run", "--master_port", cat(again.port), "--log_dir", again.logs, "--worker_num",
       "1", "--join=True", "sh", "-c", "echo \"$@\"", "sh", "--join", "--", "-x"},
      {});
  EXPECT_EQ(again.wait(run, 30), 0) << again.output();
  EXPECT_EQ(again.log("worker_0.log"), "--join -- -x\n");
}

TEST(Msrun, RefusesAnOptionThatItDoesNotKnow) {
  Job job("unknown-option");
  job.launch({"--worker_nmu", "1", "true"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(has(job.output(), "unknown option --worker_nmu")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// As with torchrun: a script can pass "$@" after its own options to let them be overridden.
TEST(Msrun, TakesTheLastOfAnOptionThatIsGivenTwice) {
  Job job("twice");
  job.launch({"--worker_num=4", "--join=False", "--worker_num=1", "--join=True", "sh", "-c",
              "echo of $MS_WORKER_NUM"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(job.log("worker_0.log"), "of 1\n");
}

// A script's variable that is not set makes an option's value empty.
TEST(Msrun, RefusesAnOptionWithoutAValueInPlaceOfTakingTheNextOptionForIt) {
  Job job("empty-value");
  job.launch({"--master_addr=", "--worker_num=1", "true"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(has(job.output(), "--master_addr= has no value")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

// Unlike a port that is taken, an address of another host does not become free: msrun must not
// wait.
TEST(Msrun, RefusesAnAddressThatIsNotOfThisHost) {
  const std::string no_name(64, 'x');  // Too long for a host name: no name server is asked.
  for (const std::string& address : {std::string("192.0.2.1"), no_name}) {
    Job job("foreign-address");
    job.launch({cat("--master_addr=", address), "--worker_num=1", "true"});
    EXPECT_EQ(job.wait(), 2);
    EXPECT_TRUE(has(job.output(), cat("--master_addr has to be an address of this host: cannot ",
                                      "listen on ", address)))
        << job.output();
    EXPECT_FALSE(has(job.output(), "can not be had just now")) << job.output();
    EXPECT_TRUE(job.nothing_left());
  }
}

// Without a token, its processes could not prove to the other host that they belong to the job.
TEST(Msrun, RefusesToStartAPartOfAJobOfAnotherHostWithoutAToken) {
  Job job("no-token");
  const std::vector<std::string> part = {"--master_addr=192.0.2.1", "--worker_num=2",
                                         "--local_worker_num=1", "--node_rank=1", "true"};
  job.launch(part);
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(has(job.output(), "HOLDFAST_TOKEN_FILE is not set: by it the hosts")) << job.output();
  job.environment.push_back(cat("HOLDFAST_TOKEN_FILE=", job.folder, "/none"));
  job.launch(part);
  EXPECT_EQ(job.wait(1, 60), 2);
  EXPECT_TRUE(has(job.output(), "HOLDFAST_TOKEN_FILE, ")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, FailsAndSaysWhoCameWhereWorkersAreMissing) {
  Job job("too-few");
  job.environment.push_back("MS_TOPO_TIMEOUT=1");
  const std::string program = TOY;
  job.launch(
      {"--worker_num", "2", "--join", "True", "sh", "-c",
       cat("[ \"$MS_NODE_ID\" = 0 ] && exec sleep 1000; exec ", program, " --out ", job.folder)});
  EXPECT_EQ(job.wait(), 1) << job.output();
  EXPECT_TRUE(has(job.output(), "only 1 of 2 workers came")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, EndsAllOnCtrlC) {
  for (const int key : {SIGINT, SIGQUIT}) {  // Ctrl-C and Ctrl-\\.
    Job job(cat("interrupt-", key));
    job.launch(toy(job, 1'000'000, {"--worker_num", "2", "--spares", "1"}));
    ASSERT_TRUE(job.reaches(5)) << job.output();
    job.signal(0, key);
    EXPECT_EQ(job.wait(), 128 + key) << job.output();
    EXPECT_TRUE(has(job.output(), cat("interrupted by signal ", key))) << job.output();
    EXPECT_TRUE(job.nothing_left());
  }
}

TEST(Msrun, KillsThoseThatDoNotHeedCtrlC) {
  Job job("stubborn");
  job.launch({"--worker_num", "1", "--join", "True", "sh", "-c",
              std::string(kStuckScheduler) +
                  "trap '' TERM INT; sleep 1000 & echo ready; while :; do wait; done"});
  ASSERT_TRUE(until([&] { return has(job.log("worker_0.log"), "ready"); }));
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, LeavesNothingRunningWhereItIsKilledItself) {
  Job job("killed-agent");
  job.launch(toy(job, 1'000'000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(5)) << job.output();
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(until([&] { return job.processes().empty(); }, 10));
  // The job's files are still there; `holdfast clean` finds and removes them.
  const auto clean = job.start({HOLDFAST, "clean"}, {});
  EXPECT_EQ(job.wait(clean, 30), 0);
  EXPECT_TRUE(has(job.output(), cat("removed /dev/shm/holdfast-", ::geteuid(), '/', job.name)))
      << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, StartsAKilledSchedulerAgainWithItsJournal) {
  Job job("scheduler");
  job.launch(toy(job, 3000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "serves again"); }))
      << job.log("scheduler.log");
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log("scheduler.log");
  // The workers went on meanwhile: no recovery was needed.
  EXPECT_FALSE(has(job.log("scheduler.log"), "recovery 1")) << job.log("scheduler.log");
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, ReplacesAKilledWorkerAndReportsTheRecovery) {
  Job job("worker");
  job.launch(toy(job, 2000, {"--worker_num", "2"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log("scheduler.log");
  const std::string reports = job.log("recoveries.jsonl");
  EXPECT_EQ(count(reports, "\n"), 1U) << reports;
  EXPECT_TRUE(has(reports, R"("ranks":[1])")) << reports;
  EXPECT_TRUE(has(reports, R"("steps_lost":0)")) << reports;
  EXPECT_FALSE(has(reports, R"("first_step_ms":null)")) << reports;
  EXPECT_TRUE(has(job.output(), cat("msrun: 1 recovery: ", job.logs, "/recoveries.jsonl tells")))
      << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, GivesASpareThePlaceOfAKilledWorker) {
  Job job("spare");
  job.launch(toy(job, 2000, {"--worker_num", "2", "--spares", "1"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  ASSERT_TRUE(job.kill("MS_NODE_ID=0"));
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log("scheduler.log");
  EXPECT_EQ(count(job.log("recoveries.jsonl"), R"("ranks":[0])"), 1U);
  EXPECT_TRUE(has(job.log("worker_0.log"), "goes on in " + job.logs + "/spare_0.log"))
      << job.log("worker_0.log");
  EXPECT_TRUE(job.nothing_left());
}

TEST(Msrun, SaysWhereTheMemoryIsIfNotInSharedMemory) {
  Job job("no-shared-memory");
  const auto run = job.start(
      {"/bin/sh", "-c",
       "unshare -m true || exit 77; exec unshare -m sh -c '(mount --bind /dev/shm /dev/shm && "
       "mount -o remount,ro,bind /dev/shm) || exit 77; exec \"$@\"' sh \"$@\"",
       "sh", MSRUN, "--master_port", cat(job.port), "--log_dir", job.logs, "--worker_num=1",
       "--join=True", "true"},
      {});
  const int code = job.wait(run, 30);
  if (code == 77) GTEST_SKIP() << "only root can make it read-only: " << job.output();
  EXPECT_EQ(code, 0) << job.output();
  EXPECT_EQ(count(job.output(), "/dev/shm can not be written to, so "), 1U) << job.output();
  const std::string memory = cat("/tmp/holdfast-", ::geteuid(), '/', job.name);
  EXPECT_TRUE(has(job.output(), memory)) << job.output();
  EXPECT_FALSE(std::filesystem::exists(memory));
}

TEST(Msrun, RunsInTheBackgroundUnlessToldToJoin) {
  Job job("background");
  auto words = toy(job, 2000, {"--worker_num", "2"});
  words[1] = "False";
  job.launch(words);
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(has(job.output(), "runs in the background")) << job.output();
  ASSERT_TRUE(job.reaches(5)) << job.output();
  const auto status = job.start({HOLDFAST, "status", "--job", job.name}, {});
  EXPECT_EQ(job.wait(status, 30), 0);
  EXPECT_TRUE(has(job.output(), "job " + job.name + ": running")) << job.output();
  EXPECT_TRUE(until([&] { return has(job.log("msrun.log"), "ended in good order"); }))
      << job.log("msrun.log");
  EXPECT_TRUE(until([&] { return job.processes().empty(); }));
  EXPECT_TRUE(job.nothing_left());
}

// Reports that a killed agent has left are those of another job, though it had the same name.
TEST(Msrun, TellsOfNoRecoveryOfADeadJobOfItsName) {
  Job job("dead-reports");
  const auto directory = os::runtime_directory(job.name);
  ASSERT_TRUE(directory) << directory.error().what;
  ASSERT_TRUE(os::write_file_atomically(*directory + "/recoveries.jsonl", "{}\n"));
  job.launch(toy(job, 20, {"--worker_num=1"}));
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_FALSE(has(job.output(), "1 recovery")) << job.output();
  EXPECT_TRUE(job.log("recoveries.jsonl").empty());
}

TEST(Msrun, RefusesASecondJobOfTheSameName) {
  Job job("same-name");
  job.launch(toy(job, 1'000'000, {"--worker_num", "1"}));
  ASSERT_TRUE(job.reaches(5)) << job.output();
  const auto second =
      job.start({MSRUN, "--master_port", cat(os::free_port()), "--worker_num", "1", "true"}, {});
  EXPECT_EQ(job.wait(second, 30), 2);
  EXPECT_TRUE(has(job.output(), "already runs on this host")) << job.output();
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
}

TEST(Msrun, SaysWhichLimitIsTooLowAndLeavesNothing) {
#ifdef HOLDFAST_SANITIZED
  GTEST_SKIP() << "a sanitizer asks by a pipe what memory is there, and takes all for bad";
#endif
  int wanting = 0;
  for (int files = 6; files <= 24; ++files) {
    Job job(cat("files-", files));
    const auto run =
        job.start({"/bin/sh", "-c", cat("ulimit -n ", files, "; exec \"$@\""), "sh", MSRUN,
                   "--master_port", cat(job.port), "--log_dir", job.logs, "--worker_num=1",
                   cat("--join=", files % 3 == 0 ? "False" : "True"), "true"},
                  {});
    const int code = job.wait(run, 30);
    if (code != 0) ++wanting;
    EXPECT_TRUE(code == 0 || code == 1 || code == 2 || code == 127) << files << ": " << code;
    EXPECT_EQ(code != 0, has(job.output(), "`ulimit -n`")) << files << ": " << job.output();
    EXPECT_TRUE(until([&] { return job.nothing_left(); })) << files;
  }
  EXPECT_GT(wanting, 5);
}

// The default folder is the current one, so two jobs from one shell would share it.
TEST(Msrun, RefusesTheLogFolderOfAJobThatRuns) {
  Job job("same-logs");
  job.launch(toy(job, 1'000'000, {"--worker_num", "1"}));
  ASSERT_TRUE(job.reaches(5)) << job.output();
  ASSERT_TRUE(os::write_file_atomically(job.logs + "/worker_0.log", "of the first\n"));
  Job other("same-logs-too");
  std::filesystem::create_directory_symlink(job.logs, other.logs);
  for (const char* join : {"True", "False"}) {
    const auto second = other.start({MSRUN, "--master_port", cat(other.port), "--log_dir",
                                     other.logs, "--worker_num=1", cat("--join=", join), "true"},
                                    {});
    EXPECT_EQ(other.wait(second, 30), 2);
    EXPECT_TRUE(has(other.output(), "a job still writes its logs in"));
    EXPECT_TRUE(has(other.output(), cat("--log_dir is ", other.logs, ", where job ", job.name)))
        << other.output();
    EXPECT_TRUE(has(other.output(), cat("(process ", job.pid(0), "): give this one another ")));
    EXPECT_EQ(job.log("worker_0.log"), "of the first\n");
    EXPECT_TRUE(job.log("msrun.log").empty());
    EXPECT_TRUE(other.nothing_left());
  }
  // The folder is free once the first job is over, also if its agent was killed.
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  Job last("same-logs-after");
  last.logs = job.logs;
  last.launch({"--worker_num=1", "--join=True", "sh", "-c", "echo of the last"});
  EXPECT_EQ(last.wait(), 0) << last.output();
  EXPECT_EQ(job.log("worker_0.log"), "of the last\n");
}

TEST(Holdfast, SaysThatAJobIsNotThere) {
  Job job("nowhere");
  const auto status = job.start({HOLDFAST, "status", "--job", job.name}, {});
  EXPECT_EQ(job.wait(status, 30), 1);
  EXPECT_TRUE(has(job.output(), "no job named '" + job.name + "'")) << job.output();
}

TEST(Holdfast, SaysWhatItCanDo) {
  Job job("no-command");
  const auto alone = job.start({HOLDFAST}, {});
  EXPECT_EQ(job.wait(alone, 30), 2);
  EXPECT_TRUE(has(job.output(),
                  "status, serve, explain, inject, stop, pause, resume, drain, move, clean, "
                  "doctor, settings, run, verify, timeline, tls, table and snapshot (--help"))
      << job.output();
}

TEST(Holdfast, SaysSoWhereItCanNotWriteWhatItSays) {
  for (const char* what :
       {"settings", "settings --markdown", "--help", "run --help", "tls --help"}) {
    Job job("full-disk");
    const auto full =
        job.start({"/bin/sh", "-c", cat("exec ", HOLDFAST, ' ', what, " > /dev/full")}, {});
    EXPECT_EQ(job.wait(full, 30), 1) << what;
    EXPECT_TRUE(has(job.output(), "could not all be written")) << job.output();
  }
}

TEST(Holdfast, SaysAsJsonWhichLimitIsTooLow) {
#ifdef HOLDFAST_SANITIZED
  GTEST_SKIP() << "a sanitizer asks by a pipe what memory is there, and takes all for bad";
#endif
  Job job("few-files");
  job.launch(toy(job, 1'000'000, {"--worker_num", "1"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const std::string told = job.folder + "/status";
  for (int files = 5; files <= 7; ++files) {
    const auto ask = job.start({"/bin/sh", "-c",
                                cat("exec > ", told, "; ulimit -n ", files, "; exec ", HOLDFAST,
                                    " status --json --job ", job.name)},
                               {});
    const int code = job.wait(ask, 30);
    EXPECT_TRUE(code == 0 || code == 1) << files << ": " << code;
    EXPECT_EQ(json_lines(told).size(), 1U) << files;
    EXPECT_EQ(code != 0, has(job.output(), "`ulimit -n`")) << files << ": " << job.output();
    ASSERT_TRUE(os::write_file_atomically(job.folder + "/output", ""));
  }
}

TEST(Holdfast, AsksForANameAsJsonWhereSeveralJobsRun) {
  Job job("one-of-two");
  Job other("two-of-two");
  for (Job* each : {&job, &other}) each->launch(toy(*each, 1'000'000, {"--worker_num", "1"}));
  ASSERT_TRUE(job.reaches(1) && other.reaches(1)) << job.output() << other.output();
  const std::string told = job.folder + "/status";
  const auto ask =
      job.start({"/bin/sh", "-c", cat("exec ", HOLDFAST, " status --json > ", told)}, {});
  EXPECT_EQ(job.wait(ask, 30), 2);
  const auto lines = json_lines(told);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(has(lines[0].value("error", ""), "several jobs run here; name one with --job"));
  EXPECT_TRUE(has(lines[0].value("error", ""), cat(job.name, "   logs in ")));
  for (const Job* each : {&job, &other}) {
    const auto& jobs = lines[0]["jobs"];
    EXPECT_EQ(std::count(jobs.begin(), jobs.end(), each->name), 1) << lines[0];
  }
}

TEST(Holdfast, RefusesAWrongCommandLineInOneSentence) {
  Job job("usage");
  const auto wrong = job.start({HOLDFAST, "stats"}, {});
  EXPECT_EQ(job.wait(wrong, 30), 2);
  EXPECT_EQ(count(job.output(), "\n"), 1U) << job.output();
  EXPECT_TRUE(has(job.output(), "no command 'stats'")) << job.output();
}

}  // namespace
}  // namespace holdfast::apps
