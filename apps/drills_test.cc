// `holdfast inject` and `holdfast explain`: a fault that a person orders comes, and all is told.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
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
void launch_and_hold(Job& job, std::vector<std::string> options,
                     const std::vector<std::string>& more = {}) {
  options.insert(options.begin(), {"--worker_num", "2", "--spares", "1"});
  auto words = toy(job, 400, std::move(options));
  words.insert(words.end(), {"--hold", "300"});
  words.insert(words.end(), more.begin(), more.end());
  job.launch(words);
}

// Until the scheduler knows how rank 1 ended: the job's end would not wait for it.
void wait_for_the_cause(const Job& job) {
  std::string text;
  EXPECT_TRUE(until([&] {
    text = holdfast(cat("explain --job ", job.name)).text;
    return has(text, "rank 1 (process ") && has(text, ") was killed by signal 9");
  })) << text
      << job.output();
}

TEST(Drill, ComesAndIsExplained) {
  Job job("drill");
  launch_and_hold(job, {"--allow_inject"}, {"--hold-again", "380"});
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
  wait_for_the_cause(job);
  std::ofstream(job.folder + "/out/go-again") << "go\n";
  ASSERT_EQ(job.wait(120), 0) << job.output();
  EXPECT_TRUE(has(job.output(), "drill: rank 1")) << job.output();

  const auto after = holdfast(cat("explain ", job.logs));
  EXPECT_EQ(after.code, 0) << after.text;
  for (const char* part :
       {"it has ended: all 2 ranks have ended in good order", "1 recovery; ",
        "was killed by signal 9", "Seen by the agent of its host. ", "took the place of rank 1",
        "9 (SIGKILL); holdfast inject had ordered such a fault of this process.",
        ", ordered by holdfast inject.\nRecovery 1, ",
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
  launch_and_hold(job, {"--allow_inject"}, {"--hold-again", "395"});
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const auto told = holdfast(cat("inject kill --job ", job.name, " --rank 1 --at-step 390"));
  ASSERT_EQ(told.code, 0) << told.text;
  ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
  ASSERT_TRUE(until([&] { return has(job.log("scheduler.log"), "serves again job"); }));
  std::string text;
  EXPECT_TRUE(until([&] {
    text = holdfast(cat("explain --job ", job.name)).text;
    return has(text, "it is running");
  })) << text;
  EXPECT_TRUE(has(text, "drill: rank 1")) << text;
  std::ofstream(job.folder + "/out/go") << "go\n";
  wait_for_the_cause(job);
  std::ofstream(job.folder + "/out/go-again") << "go\n";
  ASSERT_EQ(job.wait(120), 0) << job.output();
  EXPECT_EQ(count(job.output(), "drill: rank 1"), 1U) << job.output();
  const auto after = holdfast(cat("explain ", job.logs));
  EXPECT_TRUE(has(after.text, "drill: rank 1")) << after.text;
  EXPECT_TRUE(has(after.text, "was killed by signal 9")) << after.text;
}

// Where each of these parts begins in the text; they must all be there.
std::vector<std::size_t> places_of(const std::string& text, const std::vector<std::string>& parts) {
  std::vector<std::size_t> all;
  for (const auto& part : parts) {
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
    all.push_back(text.find(part));
  }
  return all;
}

constexpr const char* kTwoRecoveries =
    R"({"recovery":1,"generation":2,"cause":"rank 1 was killed","version":9,"steps_lost":0,)"
    R"("stop_ms":1.0,"resume_ms":2.0,"first_step_ms":3000.0,"over_ms":3000.0,)"
    R"("at":"2026-11-29T10:00:05.000Z","seen_by":"its agent","faults":[{"rank":1,)"
    R"("cause":"rank 1 was killed","seen_by":"its agent","after_ms":0.0,"drill":2},)"
    R"({"rank":0,"cause":"rank 0 hung","seen_by":"the scheduler","after_ms":7.5,)"
    R"("waited_ms":4000.0,"drill":null}]})"
    "\n"
    R"({"recovery":2,"generation":3,"cause":"rank 0 died","version":9,"steps_lost":0,)"
    R"("resume_ms":2.0,"first_step_ms":null,"over_ms":500.0,"at":"2026-11-29T10:00:08.500Z"})"
    "\n";
constexpr const char* kThreeRemarks =
    R"({"job":"demo","reason":"all is well","recoveries":1,"remarks":[)"
    R"({"remark":1,"at":"2026-11-29T09:00:00.000Z","kind":"slow","sentence":"rank 3 is slow"},)"
    R"({"remark":2,"at":"2026-11-29T08:00:00.000Z","kind":"drill","sentence":"drill: rank 1"},)"
    R"({"remark":3,"at":"2026-11-29T11:00:00.000Z","kind":"slow","sentence":"rank 4 is slow"},)"
    R"({"remark":4,"at":null,"kind":"other","sentence":"when?"}]})";

TEST(Drill, IsToldBeforeItsRecoveryAndAllInTheOrderOfTime) {
  Job job("explain-order");
  std::ofstream(job.folder + "/recoveries.jsonl") << kTwoRecoveries;
  std::ofstream(job.folder + "/last_status.json") << kThreeRemarks;
  const auto said = holdfast(cat("explain ", job.folder));
  EXPECT_EQ(said.code, 0) << said.text;
  const auto at = places_of(
      said.text,
      {"Job demo: it has ended: all is well\n2 recoveries; from a fault to the next step of all "
       "ranks 3.5 s in all (1 came to no step: until it was cut short); before, 4.0 s of "
       "waiting for ranks that hung.\n",
       "2026-11-29T09:00:00.000Z: rank 3 is slow.\n",
       "2026-11-29T08:00:00.000Z: drill: rank 1, ordered by holdfast inject.\nRecovery 1, ",
       "05.000Z: rank 1 was killed; holdfast inject had ordered such a fault of this process. Seen "
       "by its agent. Then, after "
       "7.5 ms: rank 0 hung. The others had waited for it for 4.0 s. Seen by the scheduler. ",
       "Recovery 2, 2026-11-29T10:00:08.500Z: rank 0 died. ", "rank 4 is slow", "when?"});
  EXPECT_TRUE(std::is_sorted(at.begin(), at.end())) << said.text;
  const auto json = holdfast(cat("explain --json ", job.folder, " > ", job.folder, "/lines"));
  EXPECT_EQ(json.code, 0) << json.text;
  const auto lines = json_lines(job.folder + "/lines");
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0]["remark"], 1);
  EXPECT_EQ(lines[1]["remark"], 2);
  EXPECT_EQ(lines[2]["recovery"], 1);
}

TEST(Drill, OfAFolderWithoutAStatusTheRecoveriesAreTold) {
  Job job("explain-part");
  std::ofstream(job.folder + "/recoveries.jsonl") << kTwoRecoveries;
  const auto said = holdfast(cat("explain ", job.folder));
  EXPECT_EQ(said.text.find("2 recoveries; "), 0U) << said.text;
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
  // The last of it may have lost its memory, and with that its environment, but not yet its number.
  ASSERT_TRUE(until([&] {
    const auto said = holdfast(cat("status --job ", job.name)).text;
    return !has(said, "it starts, or is being replaced") && job.processes().empty();
  }));
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
