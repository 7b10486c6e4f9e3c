// Everything is lost, and the job goes on from a snapshot with the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

constexpr int kMade = 300;
constexpr const char* kFar = "1000000";  // Steps: no usual snapshot is made.

class Snapshots : public ::testing::Test {
 protected:
  // `more`: of msrun.
  static std::vector<std::string> two(const Job& job, std::vector<std::string> more,
                                      const std::string& pause = "3000") {
    more.insert(more.begin(), {"--worker_num", "2"});
    auto words = toy(job, kMade, std::move(more));
    words.insert(words.end(), {"--pause", pause});
    return words;
  }
  static const std::string& undisturbed() {
    static const std::string states = [] {
      Job job("snapshots-undisturbed");
      job.launch(two(job, {}, "0"));
      EXPECT_EQ(job.wait(60), 0) << job.output();
      return job.states();
    }();
    return states;
  }
  // The steps of the whole snapshots of a job, ascending.
  static std::vector<int> steps_in(const std::string& folder) {
    std::vector<int> steps;
    for (const std::string& name : os::names_in(folder)) {
      if (!std::filesystem::exists(cat(folder, '/', name, "/manifest.json"))) continue;
      steps.push_back(std::stoi(name.substr(name.rfind('-') + 1)));
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  static void expect_to_go_on_from(const std::string& folder, int step) {
    Job next("snapshots-next");
    next.launch(two(next, {"--resume", folder}, "0"));
    ASSERT_EQ(next.wait(60), 0) << next.output();
    EXPECT_TRUE(has(next.output(), cat("begins again from the snapshot of step ", step, " ")))
        << next.output();
    EXPECT_EQ(next.states(), undisturbed());
    EXPECT_TRUE(next.nothing_left());
  }
};

TEST_F(Snapshots, AreMadeBesideTheStepsAndOldOnesGo) {
  Job job("snapshots-made");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(two(job, {"--snapshot", folder, "--snapshot_every", "20", "--snapshot_keep", "3"}));
  ASSERT_EQ(job.wait(60), 0) << job.output();
  EXPECT_EQ(job.states(), undisturbed());
  const auto steps = steps_in(folder);
  // The job may end before the oldest is removed.
  ASSERT_TRUE(steps.size() == 3 || steps.size() == 4) << job.log("scheduler");
  for (const int step : steps) EXPECT_EQ(step % 20, 0);
  expect_to_go_on_from(folder, steps.back());
  EXPECT_EQ(std::system(cat(HOLDFAST, " snapshot verify ", folder, " >/dev/null").c_str()), 0);
}

// All are killed in one instant, so nobody can do anything for it.
TEST_F(Snapshots, AllProcessesMayDieAtOnce) {
  Job job("snapshots-killed");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(two(job, {"--snapshot", folder, "--snapshot_every", "20"}));
  ASSERT_TRUE(until([&] { return steps_in(folder).size() == 2; })) << job.output();
  job.signal(0, SIGSTOP);
  for (const pid_t pid : job.processes()) ::kill(pid, SIGKILL);
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(20), 128 + SIGKILL);
  expect_to_go_on_from(folder, steps_in(folder).back());
}

TEST_F(Snapshots, ASignalMakesALastOne) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    Job job(cat("snapshots-signal-", signal));
    const std::string folder = cat(job.folder, "/snapshots");
    job.launch(two(job, {"--snapshot", folder, "--snapshot_every", kFar}));
    ASSERT_TRUE(job.reaches(20)) << job.output();
    const int before = static_cast<int>(job.status("version"));
    job.signal(0, signal);
    EXPECT_EQ(job.wait(60), 128 + signal) << job.output();
    ASSERT_FALSE(steps_in(folder).empty()) << job.output();
    EXPECT_EQ(steps_in(folder).size(), 1U);
    EXPECT_GE(steps_in(folder).back(), before);
    EXPECT_TRUE(job.nothing_left());
    expect_to_go_on_from(folder, steps_in(folder).back());
  }
}

// As Slurm ends a job: all of its processes get the signal, the launcher twice if another one
// passes it on.
TEST_F(Snapshots, ASignalToAllProcessesDoesTheSame) {
  Job job("snapshots-signal-all");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(two(job, {"--snapshot", folder, "--snapshot_every", kFar}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  for (const pid_t pid : job.processes()) ::kill(pid, SIGTERM);
  job.signal(0, SIGTERM);
  job.signal(0, SIGTERM);
  EXPECT_EQ(job.wait(60), 128 + SIGTERM) << job.output();
  EXPECT_TRUE(has(job.output(), "the last step that was made is in the snapshot")) << job.output();
  EXPECT_FALSE(has(job.output(), "was killed by signal")) << job.output();
  ASSERT_FALSE(steps_in(folder).empty()) << job.output();
  expect_to_go_on_from(folder, steps_in(folder).back());
}

TEST_F(Snapshots, AJobThatFailsLeavesOne) {
  Job job("snapshots-failed");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(two(job, {"--snapshot", folder, "--snapshot_every", kFar, "--max_restarts", "0"}));
  ASSERT_TRUE(job.reaches(20)) << job.output();
  EXPECT_TRUE(job.kill("MS_NODE_ID=1"));
  EXPECT_EQ(job.wait(60), 128 + SIGKILL) << job.output();
  ASSERT_EQ(steps_in(folder).size(), 1U) << job.output();
  expect_to_go_on_from(folder, steps_in(folder).back());
}

TEST_F(Snapshots, AJobThatHasMadeNoStepLeavesNone) {
  Job job("snapshots-no-step");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch({"--worker_num", "2", "--join", "True", "--max_restarts", "0", "--snapshot", folder,
              "/bin/false"});
  EXPECT_EQ(job.wait(60), 1) << job.output();
  EXPECT_TRUE(steps_in(folder).empty());
  EXPECT_FALSE(has(job.output(), "last snapshot")) << job.output();
}

TEST_F(Snapshots, HoldfastStopsAJobAfterAStep) {
  Job job("snapshots-stop");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(two(job, {"--snapshot", folder, "--snapshot_every", kFar}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  const std::string stop = cat(HOLDFAST, " stop --job ", job.name, " --after-step 120 >/dev/null");
  EXPECT_EQ(std::system(stop.c_str()), 0);
  EXPECT_EQ(job.wait(60), 128 + SIGTERM) << job.output();
  ASSERT_EQ(steps_in(folder).size(), 1U) << job.output();
  EXPECT_GE(steps_in(folder).front(), 120);
  expect_to_go_on_from(folder, steps_in(folder).back());
}

// The memory of all ranks is gone, and one of their processes, or both.
TEST_F(Snapshots, AreTheLastRungOfARecovery) {
  for (const int dies : {1, 2}) {
    Job job(cat("snapshots-rung-", dies));
    const std::string folder = cat(job.folder, "/snapshots");
    job.launch(two(job, {"--snapshot", folder, "--snapshot_every", kFar}));
    ASSERT_TRUE(job.reaches(1)) << job.output();
    const std::string now = cat(HOLDFAST, " snapshot now --job ", job.name, " >/dev/null");
    ASSERT_EQ(std::system(now.c_str()), 0) << job.output();
    ASSERT_EQ(steps_in(folder).size(), 1U);
    ASSERT_TRUE(job.reaches(steps_in(folder).front() + 10)) << job.output();
    for (const char* who : {"MS_NODE_ID=0", "MS_NODE_ID=1"}) {
      const auto pids = job.processes(who);
      ASSERT_EQ(pids.size(), 1U);
      ::kill(pids.front(), SIGSTOP);
    }
    for (const int rank : {0, 1}) {
      std::filesystem::remove(
          cat("/dev/shm/holdfast-", ::getuid(), '/', job.name, "/rank-", rank, ".arena"));
    }
    for (const char* who : {"MS_NODE_ID=0", "MS_NODE_ID=1"}) {
      if (dies == 1 && who == std::string("MS_NODE_ID=0")) {
        for (const pid_t pid : job.processes(who)) ::kill(pid, SIGCONT);
      } else {
        EXPECT_TRUE(job.kill(who));
      }
    }
    ASSERT_EQ(job.wait(60), 0) << job.output();
    EXPECT_TRUE(has(job.output(), "begins again from the snapshot of step ")) << job.output();
    EXPECT_TRUE(has(job.output(), " made again")) << job.output();
    EXPECT_EQ(job.states(), undisturbed());
  }
}

// Workers and parameter servers.
TEST_F(Snapshots, HaveTheRowsOfServers) {
  const auto served = [](const Job& job, std::vector<std::string> more, const char* pause) {
    more.insert(more.begin(), {"--server_num", "2"});
    auto words = two(job, std::move(more), pause);
    words.insert(words.end(), {"--keys", "50"});
    return words;
  };
  Job calm("snapshots-served");
  calm.launch(served(calm, {}, "0"));
  ASSERT_EQ(calm.wait(60), 0) << calm.output();
  Job job("snapshots-served-lost");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(served(job, {"--snapshot", folder, "--snapshot_every", "20"}, "3000"));
  ASSERT_TRUE(until([&] { return steps_in(folder).size() == 2; })) << job.output();
  job.signal(0, SIGSTOP);
  for (const pid_t pid : job.processes()) ::kill(pid, SIGKILL);
  job.signal(0, SIGKILL);
  EXPECT_EQ(job.wait(20), 128 + SIGKILL);
  Job next("snapshots-served-next");
  next.launch(served(next, {"--resume", folder}, "0"));
  ASSERT_EQ(next.wait(60), 0) << next.output();
  EXPECT_TRUE(has(next.output(), "begins again from the snapshot of step ")) << next.output();
  EXPECT_EQ(next.states(), calm.states());
}

TEST_F(Snapshots, WhatDoesNotFitIsNamed) {
  Job job("snapshots-misfit");
  const std::string folder = cat(job.folder, "/snapshots");
  std::filesystem::create_directory(folder);
  job.launch(two(job, {"--resume", folder}));
  EXPECT_EQ(job.wait(60), 2);
  EXPECT_TRUE(has(job.output(), "there is no whole snapshot in ")) << job.output();
  Job first("snapshots-misfit-first");
  first.launch(two(first, {"--snapshot", folder, "--snapshot_every", "20"}, "1000"));
  ASSERT_EQ(first.wait(60), 0) << first.output();
  Job other("snapshots-misfit-other");
  auto words = toy(other, kMade, {"--worker_num", "1", "--resume", folder});
  other.launch(words);
  EXPECT_EQ(other.wait(60), 2);
  EXPECT_TRUE(has(other.output(), "is of a job of 2 workers, and this one has 1 worker:"))
      << other.output();
  const std::string another = " was made by another command: `--pause 0` was `--pause 1000`. ";
  for (const bool changes : {false, true}) {
    first.launch(two(first, {"--resume", folder}, changes ? "0" : "1000"));
    ASSERT_EQ(first.wait(changes ? 2 : 1, 60), 0) << first.output();
    EXPECT_EQ(has(first.output(), "another command"), changes) << first.output();
    EXPECT_EQ(has(first.output(), another), changes) << first.output();
  }
  Job anew("snapshots-anew");
  anew.launch(two(anew, {"--snapshot", folder}, "0"));
  EXPECT_EQ(anew.wait(60), 0);
  EXPECT_TRUE(has(anew.output(), ": --resume auto would go on from it")) << anew.output();
}

// Another model is named at once. A damaged file is named, and the older snapshot is taken.
TEST_F(Snapshots, WhatIsDamagedIsNotUsed) {
  Job job("snapshots-damaged");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(two(job, {"--snapshot", folder, "--snapshot_every", "20"}, "1000"));
  ASSERT_EQ(job.wait(60), 0) << job.output();
  const auto steps = steps_in(folder);
  ASSERT_EQ(steps.size(), 2U);
  Job other("snapshots-other");
  auto words = two(other, {"--resume", folder}, "0");
  words.insert(words.end(), {"--elements", "77"});
  other.launch(words);
  EXPECT_NE(other.wait(60), 0);
  EXPECT_TRUE(has(other.output(), "its model or optimizer differs from that of "))
      << other.output();
  EXPECT_FALSE(has(other.output(), "can not be used")) << other.output();
  for (const std::string& name : os::names_in(folder)) {
    if (!name.ends_with(cat('-', steps.back()))) continue;
    const std::string path = cat(folder, '/', name, "/rank-1.safetensors");
    auto bytes = *os::read_file(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    ASSERT_TRUE(os::write_file_atomically(path, bytes));
  }
  // Odd things in the folder are left alone.
  std::filesystem::create_symlink("a", cat(folder, "/a"));
  std::filesystem::create_directory(cat(folder, "/0"));
  Job next("snapshots-older");
  next.launch(two(next, {"--resume", folder}, "0"));
  ASSERT_EQ(next.wait(60), 0) << next.output();
  EXPECT_TRUE(has(next.output(), cat("the snapshot of step ", steps.back(), " can not be used")))
      << next.output();
  EXPECT_TRUE(has(next.output(), cat("begins again from the snapshot of step ", steps.front())))
      << next.output();
  EXPECT_EQ(next.states(), undisturbed());
  for (const std::string& name : os::names_in(folder)) {
    std::error_code error;
    std::filesystem::remove(cat(folder, '/', name, "/rank-0.safetensors"), error);
  }
  Job none("snapshots-none");
  none.launch(two(none, {"--snapshot", folder, "--resume", "auto"}, "0"));
  EXPECT_EQ(none.wait(60), 2) << "it never begins anew because of that";
  EXPECT_TRUE(has(none.output(), "can be used: ")) << none.output();
}

// A full disk costs the snapshot and a line, never the job.
TEST_F(Snapshots, AFolderThatCanNotBeWrittenCostsALine) {
  Job no("snapshots-no-folder");
  ASSERT_TRUE(os::write_file_atomically(cat(no.folder, "/a-file"), "no folder"));
  no.launch(two(no, {"--snapshot", cat(no.folder, "/a-file/snapshots")}));
  EXPECT_EQ(no.wait(60), 2) << "it is seen before the job begins";
  EXPECT_TRUE(has(no.output(), "--snapshot is '")) << no.output();
  Job job("snapshots-full");
  const std::string folder = cat(job.folder, "/snapshots");
  job.launch(two(job, {"--snapshot", folder, "--snapshot_every", "20"}));
  ASSERT_TRUE(job.reaches(1)) << job.output();
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(os::write_file_atomically(folder, "no folder"));
  const std::string stop = cat(HOLDFAST, " stop --job ", job.name, " >/dev/null 2>&1");
  EXPECT_EQ(WEXITSTATUS(std::system(stop.c_str())), 1) << "the job goes on without a snapshot";
  ASSERT_EQ(job.wait(60), 0) << job.output();
  EXPECT_EQ(count(job.output(), "no snapshot of step "), 1U) << job.output();
  EXPECT_EQ(job.states(), undisturbed());
}

}  // namespace
}  // namespace holdfast::apps
