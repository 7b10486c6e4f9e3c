// Rehearsals under msrun. In most tests a few lines of shell, which write a verdict, stand for the
// rehearsing process.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"
#include "os/idle.h"
#include "os/spawn.h"

namespace holdfast::apps {
namespace {

// A job of two toys with spares, whose rehearsals run `script`: $f is their folder, and $r the
// rank.
void launch(Job& job, const std::string& script, std::vector<std::string> options = {},
            int steps = 1'000'000) {
  std::string line =
      cat("if [ -n \"$HOLDFAST_REHEARSE\" ]; then r=$HOLDFAST_REHEARSE; ",
          "f=${HOLDFAST_LIFELINE%/*}/rehearsal-$r; ",
          "say() { printf \"$1\" > $f/new; mv $f/new $f/verdict; }; ", script, "; exit; fi; exec");
  for (const auto& word : toy_command(job, steps)) line += ' ' + word;
  options.insert(options.begin(), {"--join", "True", "--worker_num", "2"});
  if (std::find(options.begin(), options.end(), "--spares") == options.end()) {
    options.insert(options.end(), {"--spares", "1"});
  }
  options.insert(options.end(), {"sh", "-c", line});
  job.environment.emplace_back("HOLDFAST_REHEARSAL_INTERVAL=0.2");
  job.launch(options);
}

std::string folder_of(const Job& job, int rank) {
  return cat("/dev/shm/holdfast-", ::geteuid(), '/', job.name, "/rehearsal-", rank);
}

// The output of `holdfast status`.
std::string shown(const Job& job, const std::string& how = "") {
  os::SpawnOptions options{.argv = {HOLDFAST, "status", "--job", job.name},
                           .environment = job.environment,
                           .output = job.folder + "/status"};
  if (!how.empty()) options.argv.push_back(how);
  std::filesystem::remove(options.output);
  const auto child = os::spawn(options);
  if (child) (void)os::wait_for(child->pidfd.get());
  return os::tail(options.output, 200);
}

bool shows(const Job& job, const std::string& words) {
  return until([&] { return has(shown(job), words); });
}

std::vector<pid_t> rehearsals(const Job& job, int rank) {
  return job.processes(cat("HOLDFAST_REHEARSE=", rank));
}

// The process that rehearses a rank; 0: none does, just now.
pid_t rehearsal(const Job& job, int rank) {
  const auto all = rehearsals(job, rank);
  return all.empty() ? 0 : all.front();
}

void interrupt(Job& job) {
  job.signal(0, SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Rehearsal, OfEachRankIsShown) {
  for (const char* spares : {"1", "all"}) {
    Job job(cat("rehearsed-", spares));
    launch(job, "env; say \"equal\\n$((5 + r))\\n\\n\"", {"--spares", spares});
    EXPECT_TRUE(shows(job, "worker 1 rehearsed at step 6: equal")) << shown(job) << job.output();
    EXPECT_TRUE(has(shown(job), "worker 0 rehearsed at step 5: equal")) << shown(job);
    const auto json = nlohmann::json::parse(shown(job, "--json"), nullptr, false);
    EXPECT_EQ(
        json["rehearsals"][1],
        (nlohmann::json{{"node_id", "1"}, {"version", 6}, {"verdict", "equal"}, {"sentence", ""}}));
    EXPECT_EQ(job.status("recoveries"), 0);
    EXPECT_FALSE(has(job.output(), "rehears")) << job.output();
    const std::string log = job.log("rehearsal_1.log");
    EXPECT_TRUE(has(log, "\nMS_NODE_ID=1\n") && has(log, "\nMS_ROLE=MS_WORKER\n") &&
                has(log, "\nHOLDFAST_ATTEMPT=1\n"))
        << log;
    EXPECT_FALSE(has(log, "HOLDFAST_SPARE_FD")) << log;
    interrupt(job);
  }
}

TEST(Rehearsal, ThatDiffersIsToldOnce) {
  Job job("rehearsal-differs");
  std::filesystem::create_directories(job.logs);
  std::ofstream(job.logs + "/rehearsal_1.log") << "of a former job\n";
  launch(job, "[ $r = 1 ] || exit 3; say \"differs\\n7\\nthe gradient of w\\n\"; echo x");
  const std::string block = cat(
      "msrun: WARNING: rank 1 was rehearsed at step 7: a replacement of it would go on with other "
      "bits than the rank itself. What differs first: the gradient of w. Details: ",
      job.logs, "/rehearsal_1.log (docs/rehearsals.md)\n");
  EXPECT_TRUE(until([&] { return count(job.log("rehearsal_1.log"), "x\n") >= 3; }));
  EXPECT_FALSE(has(job.log("rehearsal_1.log"), "former"));
  EXPECT_EQ(count(job.output(), block), 1U) << job.output();
  EXPECT_TRUE(shows(job, "worker 1 rehearsed at step 7: differs: the gradient of w")) << shown(job);
  EXPECT_TRUE(shows(job, "worker 0 not audited: it ended with exit code 3")) << shown(job);
  EXPECT_FALSE(has(job.output(), "rank 0")) << job.output();
  EXPECT_EQ(count(job.log("rehearsal_0.log"), "msrun: rank 0 was not audited: "), 1U);
  EXPECT_EQ(job.status("recoveries"), 0);
  interrupt(job);
}

TEST(Rehearsal, GoesOnInASecondProcess) {
  Job job("rehearsal-again");
  launch(job,
         "if [ $HOLDFAST_ATTEMPT = 1 ]; then echo $$ > $f/kept; say \"again\\n7\\n\\n\"; "
         "elif [ -s $f/kept ]; then say \"differs\\n7\\nw\\n\"; fi");
  EXPECT_TRUE(shows(job, "worker 0 rehearsed at step 7: differs: w")) << shown(job);
  EXPECT_TRUE(shows(job, "worker 1 rehearsed at step 7: differs: w")) << shown(job);
  interrupt(job);
}

// Here the toy trainer itself rehearses: it makes a rank's step again.
TEST(Rehearsal, OfAProgramThatKeepsAllIsEqual) {
  Job job("rehearsal-real");
  job.environment.emplace_back("HOLDFAST_REHEARSAL_INTERVAL=0");
  auto command = toy_command(job, 1'000'000);
  command.insert(command.begin(), {"--join", "True", "--worker_num", "2", "--spares", "1"});
  job.launch(command);
  EXPECT_TRUE(shows(job, "worker 0 rehearsed at step ")) << shown(job) << job.output();
  EXPECT_TRUE(shows(job, "worker 1 rehearsed at step ")) << shown(job) << job.output();
  // After a fault the successor is rehearsed, too.
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = cat("rehearsal_", rank, ".log");
    const std::size_t size = job.log(name).size();
    ASSERT_TRUE(job.kill(cat("MS_NODE_ID=", rank)));
    EXPECT_TRUE(until([&] { return job.status("recoveries") == rank + 1; })) << job.output();
    EXPECT_TRUE(until([&] { return job.log(name).size() > size; }));
  }
  for (int rank = 0; rank < 2; ++rank) {
    const std::string log = job.log(cat("rehearsal_", rank, ".log"));
    EXPECT_TRUE(has(log, ": equal\n")) << log;
    EXPECT_FALSE(has(log, "differs") || has(log, "uncertain") || has(log, "again")) << log;
  }
  interrupt(job);
}

TEST(Rehearsal, OfAProgramThatDoesNotKeepAllNamesWhatDiffersFirst) {
  Job job("rehearsal-forgets");
  auto command = toy_command(job, 1'000'000);
  command.insert(command.begin(), {"--join", "True", "--worker_num", "2", "--spares", "1"});
  command.insert(command.end(), {"--forgets", "5"});
  job.launch(command);
  EXPECT_TRUE(until([&] { return has(job.output(), "What differs first: gradient 2. "); }))
      << job.output() << job.log("rehearsal_0.log");
  EXPECT_TRUE(shows(job, ": differs: gradient 2")) << shown(job);
  interrupt(job);
}

std::string whole(const std::string& path) {
  const auto bytes = os::read_file(path);
  return bytes ? *bytes : "";
}

// 50 by hand: HOLDFAST_TEST_FLIPS=50.
TEST(Rehearsal, FindsEachWrongGradientAndTheRank) {
  const char* asked = ::getenv("HOLDFAST_TEST_FLIPS");
  const std::size_t wanted = asked == nullptr ? 2 : std::stoul(asked);
  Job job("rehearsal-flips");
  job.environment.emplace_back("HOLDFAST_REHEARSAL_INTERVAL=0");
  auto command = toy_command(job, 1'000'000);
  command.insert(command.begin(), {"--join", "True", "--worker_num", "2", "--spares", "1"});
  auto flipping = command;
  flipping.insert(flipping.end(), {"--flips", cat(wanted)});
  job.launch(flipping);
  const auto log = [&] { return whole(job.logs + "/rehearsal_1.log"); };
  ASSERT_TRUE(until([&] { return count(log(), ": differs: ") == wanted; }, 600)) << log();
  const auto told = [&] {
    return count(job.output(), "rank 1 came to something else in step ") >=
           std::min<std::size_t>(wanted, 5);
  };
  ASSERT_TRUE(until(told, 600)) << job.output();
  EXPECT_TRUE(shows(job, ": wrong: ")) << shown(job);
  // Further than any rank can be by now.
  const std::string last = cat(static_cast<Version>(job.status("version")) + 2000);
  ASSERT_TRUE(os::write_file_atomically(job.folder + "/out/last", last));
  ASSERT_EQ(job.wait(600), 0) << job.output();
  std::ifstream flips(job.folder + "/out/flips");
  std::size_t found = 0;
  for (Version step = 0; flips >> step; ++found) {
    EXPECT_TRUE(has(log(), cat(", step ", step, ": differs: gradient ", step % 3, '\n'))) << log();
    if (found > 4) continue;  // Of many, not all are told.
    EXPECT_TRUE(has(job.output(), cat("rank 1 came to something else in step ", step, " than ")))
        << job.output();
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(count(log(), ": differs: "), wanted) << log();
  EXPECT_FALSE(has(job.output(), "rank 0 ")) << job.output();
  EXPECT_FALSE(has(whole(job.logs + "/rehearsal_0.log"), "differs"));

  Job same("same-flips");  // Without rehearsals.
  same.environment.emplace_back("HOLDFAST_REHEARSALS=0");
  command = toy_command(same, std::stoi(last));
  command.insert(command.begin(), {"--join", "True", "--worker_num", "2", "--spares", "1"});
  command.insert(command.end(), {"--flips-of", job.folder + "/out/flips"});
  same.launch(command);
  ASSERT_EQ(same.wait(600), 0) << same.output();
  for (int rank = 0; rank < 2; ++rank) {
    const std::string state = whole(cat(job.folder, "/out/rank-", rank));
    EXPECT_FALSE(state.empty());
    EXPECT_EQ(state, whole(cat(same.folder, "/out/rank-", rank)));
  }
}

TEST(Rehearsal, ThatDiffersEndsAStrictJob) {
  Job job("rehearsal-strict");
  launch(job, "say \"differs\\n7\\nthe gradient of w\\n\"", {"--strict_rehearsals"});
  EXPECT_EQ(job.wait(), 1) << job.output();
  EXPECT_TRUE(has(job.output(), "the job has failed: rank 0 was rehearsed at step 7: "))
      << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Rehearsal, IsEndedByAFaultAndBeginsAnew) {
  Job job("rehearsal-fault");
  launch(job, "[ $r = 0 ] && say \"equal\\n5\\n\\n\" || { echo begins; touch $f/x; sleep 1000; }");
  pid_t pid = 0;
  ASSERT_TRUE(until([&] { return (pid = rehearsal(job, 1)) != 0; })) << job.output();
  EXPECT_TRUE(until([&] { return std::filesystem::exists(folder_of(job, 1) + "/x"); }));
  EXPECT_FALSE(std::filesystem::exists(folder_of(job, 0)));
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  EXPECT_TRUE(until([&] { return job.status("recoveries") == 1; })) << job.output();
  const auto is_another = [&](pid_t now) { return now != 0 && now != pid; };
  EXPECT_TRUE(until([&] { return is_another(rehearsal(job, 1)); })) << job.output();
  EXPECT_TRUE(until([&] { return count(job.log("rehearsal_1.log"), "begins") == 2; }));
  EXPECT_TRUE(has(shown(job), "worker 0 rehearsed at step 5: equal")) << shown(job);
  EXPECT_FALSE(has(shown(job), "worker 1 ")) << shown(job);
  // The death of a rehearsing process is no fault of the job.
  const auto before = rehearsals(job, 1);
  for (const pid_t one : before) ::kill(one, SIGKILL);
  EXPECT_TRUE(shows(job, "worker 1 not audited: it was killed by signal 9")) << shown(job);
  EXPECT_EQ(job.status("recoveries"), 1);
  interrupt(job);
}

TEST(Rehearsal, IsIdleAndKilledIfItHangs) {
  Job job("rehearsal-hangs");
  job.environment.emplace_back("HOLDFAST_REHEARSAL_TIMEOUT=1");
  job.environment.emplace_back("HOLDFAST_SPARE_SHARE=0");
  launch(job, "sleep 1000");
  pid_t pid = 0;
  ASSERT_TRUE(until([&] { return (pid = rehearsal(job, 0)) != 0; })) << job.output();
  EXPECT_TRUE(!os::may_undo_idle() || ::sched_getscheduler(pid) == SCHED_IDLE);
  EXPECT_TRUE(shows(job,
                    "worker 0 not audited: it had not ended after 1 s and was killed; see "
                    "rehearsal_0.log"))
      << shown(job);
  EXPECT_TRUE(until([&] { return !rehearsals(job, 1).empty(); })) << job.output();
  interrupt(job);
}

TEST(Rehearsal, IsNotOneMomentOfTheJobsEnd) {
  Job job("rehearsal-end");
  launch(job, "trap '' TERM; sleep 1000", {}, 1500);
  ASSERT_TRUE(until([&] { return !rehearsals(job, 0).empty(); })) << job.output();
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Rehearsal, IsNotThereWithoutSparesOrWhereItIsOff) {
  for (const char* spares : {"0", "1"}) {
    Job job(cat("rehearsal-off-", spares));
    if (*spares == '1') job.environment.emplace_back("HOLDFAST_REHEARSALS=0");
    launch(job, "echo there", {"--spares", spares}, 1500);
    EXPECT_EQ(job.wait(), 0) << job.output();
    EXPECT_FALSE(std::filesystem::exists(job.logs + "/rehearsal_0.log"));
    EXPECT_TRUE(job.nothing_left());
  }
}

}  // namespace
}  // namespace holdfast::apps
