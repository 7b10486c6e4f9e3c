// `holdfast inject` and `holdfast explain`: a fault that a person orders comes, and all is told.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

struct Said {
  int code = -1;
  std::string text;
};

// Runs `holdfast` with these arguments.
Said holdfast(const std::string& arguments) {
  Said said;
  FILE* pipe = ::popen(cat(HOLDFAST, " ", arguments, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return said;
  char block[4096];
  for (std::size_t got = 0; (got = std::fread(block, 1, sizeof block, pipe)) > 0;) {
    said.text.append(block, got);
  }
  const int status = ::pclose(pipe);
  said.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

std::string state_of(const Job& job) {
  std::string all;
  for (const int rank : {0, 1}) {
    const auto state = os::read_file(cat(job.folder, "/out/rank-", rank));
    all += state ? *state : "none";
  }
  return all;
}

// Two toys that make 400 steps, and hold in step 300 until there is a file "go".
void launch_and_hold(Job& job, std::vector<std::string> options) {
  options.insert(options.begin(), {"--worker_num", "2", "--spares", "1"});
  auto words = toy(job, 400, std::move(options));
  words.insert(words.end(), {"--hold", "300"});
  job.launch(words);
}

TEST(Drill, ComesAndIsExplained) {
  Job job("drill");
  launch_and_hold(job, {"--allow_inject"});
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const auto wrong = holdfast(cat("inject flood --job ", job.name, " --rank 1"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_TRUE(has(wrong.text, "there are kill, stop, hang")) << wrong.text;
  for (const char* bad : {"--at-step -3", "--for 5", "--for nan"}) {
    EXPECT_EQ(holdfast(cat("inject kill --job ", job.name, " --rank 1 ", bad)).code, 2) << bad;
  }
  EXPECT_EQ(holdfast(cat("inject slow --job ", job.name, " --rank 1 --for 0.0004")).code, 2);
  EXPECT_EQ(holdfast(cat("inject hang --job ", job.name, " --rank 1 --for 0")).code, 2);
  const auto late = holdfast(cat("inject kill --job ", job.name, " --rank 1 --at-step 1"));
  EXPECT_EQ(late.code, 1);
  EXPECT_TRUE(has(late.text, "has made step 1 already")) << late.text;
  const auto nobody = holdfast(cat("inject kill --job ", job.name, " --rank 2"));
  EXPECT_TRUE(has(nobody.text, "there is no rank 2: the job has 2 ranks")) << nobody.text;
  const auto told =
      holdfast(cat("inject kill --job ", job.name, " --rank 1 --at-step 350 --phase commit"));
  EXPECT_EQ(told.code, 0) << told.text;
  EXPECT_TRUE(has(told.text,
                  "is to be killed (SIGKILL) when it comes to the commit barrier in "
                  "step 350"))
      << told.text;
  const auto before = holdfast(cat("explain --job ", job.name));
  EXPECT_EQ(before.code, 0) << before.text;
  EXPECT_TRUE(has(before.text, "it is running, step ")) << before.text;
  EXPECT_TRUE(has(before.text, "There was no recovery that is complete.")) << before.text;
  std::ofstream(job.folder + "/out/go") << "go\n";
  ASSERT_EQ(job.wait(120), 0) << job.output();
  EXPECT_TRUE(has(job.output(), "drill: rank 1")) << job.output();

  const auto after = holdfast(cat("explain ", job.logs));
  EXPECT_EQ(after.code, 0) << after.text;
  for (const char* part :
       {"it has ended: all 2 ranks have ended in good order", "1 recovery; ",
        "was killed by signal 9", "Seen by the agent of its host. ", "took the place of rank 1",
        "found the state in memory. After the fault: told to stop ",
        "Training went on after step 349", "No step that a rank had told of as committed is lost.",
        "drill: rank 1"}) {
    EXPECT_TRUE(has(after.text, part)) << part << "\n" << after.text;
  }
  Job undisturbed("drill-undisturbed");
  undisturbed.launch(toy(undisturbed, 400, {"--worker_num", "2"}));
  ASSERT_EQ(undisturbed.wait(120), 0) << undisturbed.output();
  EXPECT_EQ(state_of(job), state_of(undisturbed));
}

// A scheduler that is started again tells what its predecessor has told; users hear it once.
TEST(Drill, IsKnownToTheNextScheduler) {
  Job job("drill-kept");
  launch_and_hold(job, {"--allow_inject"});
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const auto told = holdfast(cat("inject kill --job ", job.name, " --rank 1 --at-step 390"));
  ASSERT_EQ(told.code, 0) << told.text;
  ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "serves again job"); }));
  std::string text;
  EXPECT_TRUE(until([&] {
    text = holdfast(cat("explain --job ", job.name)).text;
    return has(text, "it is running, step 299");
  })) << text;
  EXPECT_TRUE(has(text, "drill: rank 1")) << text;
  std::ofstream(job.folder + "/out/go") << "go\n";
  ASSERT_EQ(job.wait(120), 0) << job.output();
  EXPECT_EQ(count(job.output(), "drill: rank 1"), 1U) << job.output();
  const auto after = holdfast(cat("explain ", job.logs));
  EXPECT_TRUE(has(after.text, "drill: rank 1")) << after.text;
  EXPECT_TRUE(has(after.text, "was killed by signal 9")) << after.text;
}

TEST(Drill, AJobThatWasNotStartedForThemTakesNone) {
  Job job("drill-none");
  launch_and_hold(job, {});
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const auto said = holdfast(cat("inject kill --job ", job.name, " --rank 1"));
  EXPECT_EQ(said.code, 1);
  EXPECT_TRUE(has(said.text, "start it with --allow-inject")) << said.text;
  std::ofstream(job.folder + "/out/go") << "go\n";
  ASSERT_EQ(job.wait(120), 0) << job.output();
  EXPECT_FALSE(has(job.output(), "recover")) << job.output();
}

// All of it is killed, so its files are left. That is not a job whose scheduler is being replaced.
TEST(Drill, ADeadJobIsCalledDead) {
  Job job("drill-dead");
  launch_and_hold(job, {"--allow_inject"});
  ASSERT_TRUE(job.reaches(1)) << job.output();
  ASSERT_EQ(holdfast(cat("inject kill --job ", job.name, " --rank 1")).code, 0);
  job.signal(0, SIGKILL);
  ASSERT_TRUE(until([&] { return job.processes().empty(); }));
  for (const char* command : {"status", "explain"}) {
    const auto said = holdfast(cat(command, " --job ", job.name));
    EXPECT_TRUE(has(said.text, "is dead: none of its processes lives on this host")) << said.text;
    EXPECT_TRUE(has(said.text, cat("its logs are in ", job.logs))) << said.text;
    const bool tells = std::string(command) == "explain";
    EXPECT_EQ(has(said.text, "drill: rank 1"), tells) << said.text;
  }
}

}  // namespace
}  // namespace holdfast::apps
