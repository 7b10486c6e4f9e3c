// `holdfast pause` and `resume`: a job keeps its memory, makes no step, and goes on with the same
// bits.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

class Pauses : public ::testing::Test {
 protected:
  static constexpr int kSteps = 400;  // 40 s, until the job is told to go on.

  static void launch(Job& job, std::vector<std::string> more) {
    more.insert(more.begin(), {"--worker_num", "2"});
    auto words = toy(job, kSteps, std::move(more));
    words.insert(words.end(), {"--lingers", "100000"});
    job.launch(words);
  }
  // Runs `holdfast COMMAND`. Returns its exit code; said() has its words.
  static int run(const Job& job, const std::string& command) {
    const std::string line =
        cat(HOLDFAST, ' ', command, " --job ", job.name, " > ", job.folder, "/said 2>&1");
    return WEXITSTATUS(std::system(line.c_str()));
  }
  static std::string said(const Job& job) {
    const auto text = os::read_file(job.folder + "/said");
    return text ? *text : "";
  }
  static bool is_paused(const Job& job) {
    const auto json = job.whole_status();
    return json.is_object() && json["state"] == "paused";
  }
  static void pause(const Job& job) {
    ASSERT_TRUE(job.reaches(5)) << job.output();
    ASSERT_EQ(run(job, "pause"), 0) << said(job);
    EXPECT_TRUE(has(said(job), "paused by order after step ")) << said(job);
    ASSERT_TRUE(is_paused(job)) << job.whole_status();
  }
};

TEST_F(Pauses, FaultsMeanwhileCostNoBitsAndEndNoPause) {
  Job calm("pause-undisturbed");
  std::filesystem::create_directories(calm.folder + "/out");
  calm.go();
  launch(calm, {});
  Job job("pause");
  launch(job, {"--spares", "1", "--hang_timeout", "2"});
  pause(job);
  const std::string words = said(job);
  const int version = std::stoi(words.substr(words.find("step ") + 5));
  EXPECT_TRUE(until([&] { return job.status("version") == version; })) << job.whole_status();
  const auto before = job.processes("MS_NODE_ID=1");
  ASSERT_EQ(before.size(), 1U);
  EXPECT_FALSE(until([&] { return has(job.output(), "holds up the job"); }, 4)) << job.output();
  EXPECT_EQ(job.processes("MS_NODE_ID=1"), before);
  ASSERT_TRUE(job.kill("MS_NODE_ID=1"));
  ASSERT_TRUE(until([&] {
    const auto json = job.whole_status();
    return json.is_object() && json["recoveries"] == 1 && json["ranks"][1]["pid"] != before[0] &&
           json["state"] == "paused";
  })) << job.output();
  ASSERT_TRUE(job.kill("MS_ROLE=MS_SCHED"));
  ASSERT_TRUE(until([&] { return has(job.output(), "the scheduler was killed"); }));
  ASSERT_TRUE(until([&] { return is_paused(job); })) << job.output();
  EXPECT_EQ(job.status("version"), version);
  EXPECT_EQ(run(job, "pause"), 0);
  EXPECT_TRUE(has(said(job), "is paused already")) << said(job);
  EXPECT_EQ(run(job, "resume"), 0);
  EXPECT_EQ(said(job), "goes on by order\n");
  job.go();
  EXPECT_EQ(job.wait(60), 0) << job.output();
  EXPECT_EQ(count(job.output(), "paused by order after step "), 1U) << job.output();
  EXPECT_EQ(count(job.output(), "goes on by order"), 1U) << job.output();
  EXPECT_TRUE(job.nothing_left());
  EXPECT_EQ(calm.wait(60), 0) << calm.output();
  EXPECT_EQ(job.states(), calm.states());
}

TEST_F(Pauses, APausedJobCanBeStopped) {
  for (const bool snapshots : {false, true}) {
    Job job(snapshots ? "pause-stop-saved" : "pause-stop");
    const std::string folder = cat(job.folder, "/snapshots");
    launch(job,
           snapshots ? std::vector<std::string>{"--snapshot", folder} : std::vector<std::string>{});
    pause(job);
    if (snapshots) {
      EXPECT_EQ(run(job, "snapshot now"), 1);
      EXPECT_TRUE(has(said(job), "`holdfast resume` comes first")) << said(job);
    }
    EXPECT_EQ(run(job, "stop"), 0) << said(job);
    EXPECT_EQ(job.wait(60), 128 + SIGTERM) << job.output();
    EXPECT_EQ(snapshots, has(said(job), "is on the disk")) << said(job);
    EXPECT_TRUE(job.nothing_left());
  }
}

// A program may save something in its next step.
TEST_F(Pauses, ASignalHasAPausedJobGoOnUntilItEnds) {
  Job job("pause-signal");
  const std::string folder = cat(job.folder, "/snapshots");
  launch(job, {"--snapshot", folder});
  pause(job);
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.wait(60), 128 + SIGTERM) << job.output();
  EXPECT_TRUE(has(job.output(), "the last step that was made is in the snapshot")) << job.output();
}

TEST_F(Pauses, AJobThatIsNotPausedSaysSo) {
  Job job("pause-none");
  launch(job, {});
  ASSERT_TRUE(job.reaches(1)) << job.output();
  EXPECT_EQ(run(job, "resume"), 0);
  EXPECT_EQ(said(job), "the job is not paused\n");
  job.go();
  EXPECT_EQ(job.wait(60), 0) << job.output();
}

}  // namespace
}  // namespace holdfast::apps
