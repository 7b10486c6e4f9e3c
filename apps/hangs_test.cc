// Ranks that hang while their processes live: they are named, and replaced if that was asked for.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

constexpr int kSteps = 400;

// Three toys, of which rank 1 holds in step 200 until there is a file "go".
void launch_held(Job& job, std::vector<std::string> options) {
  options.insert(options.begin(), {"--worker_num", "3"});
  auto words = toy(job, kSteps, std::move(options));
  words.insert(words.end(), {"--hold", "200", "--holds", "1"});
  job.launch(words);
}

void let_go(const Job& job) {
  std::ofstream(job.folder + "/out/go") << "go\n";
}

bool names(const Job& job) {
  return until([&] { return has(job.output(), "holds up the job"); });
}

std::vector<std::string> states(const Job& job) {
  std::vector<std::string> all;
  for (const int rank : {0, 1, 2}) {
    auto state = os::read_file(cat(job.folder, "/out/rank-", rank));
    all.push_back(state ? *state : cat("no state of rank ", rank));
  }
  return all;
}

TEST(Hang, IsNamedAndGoesOnByItself) {
  Job job("hang-named");
  launch_held(job, {});
  ASSERT_TRUE(names(job)) << job.output();
  const std::string output = job.output();
  EXPECT_TRUE(has(output, "rank 1 (process ")) << output;
  EXPECT_TRUE(has(output, "2 ranks have waited for it for ")) << output;
  EXPECT_TRUE(has(output, "it is in step 200, in the program's part of it")) << output;
  EXPECT_TRUE(has(output, "It uses hardly any processor time: it waits")) << output;
  const auto json = job.whole_status();
  ASSERT_EQ(json["holds_up"].size(), 1U) << json;
  EXPECT_EQ(json["holds_up"][0]["rank"], 1);
  EXPECT_EQ(json["state"], "standing still");
  let_go(job);
  EXPECT_EQ(job.wait(120), 0) << job.output();
  EXPECT_EQ(count(job.output(), "holds up the job"), 1U) << job.output();
  EXPECT_FALSE(has(job.output(), "recover")) << job.output();
  EXPECT_TRUE(job.nothing_left());
}

TEST(Hang, IsEndedAfterTheLimitAndCostsNoBits) {
  Job job("hang-ended");
  launch_held(job, {"--spares", "1", "--hang_timeout", "3"});
  ASSERT_TRUE(until([&] { return has(job.output(), "the others waited for it for longer than"); }))
      << job.output();
  let_go(job);
  EXPECT_EQ(job.wait(120), 0) << job.output();
  EXPECT_TRUE(has(job.output(), "1 recovery")) << job.output();
  EXPECT_TRUE(job.nothing_left());
  const auto reports = json_lines(job.logs + "/recoveries.jsonl");
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_GE(reports[0]["faults"][0]["waited_ms"], 2990) << "the limit: " << reports[0];
  Job undisturbed("hang-undisturbed");
  undisturbed.launch(toy(undisturbed, kSteps, {"--worker_num", "3"}));
  EXPECT_EQ(undisturbed.wait(120), 0) << undisturbed.output();
  EXPECT_FALSE(has(undisturbed.output(), "holds up the job")) << undisturbed.output();
  EXPECT_EQ(states(job), states(undisturbed));
}

// Rank 0 is replaced, and rank 1 hangs in the first step of the new generation: the others have
// come further than rank 1 there, though not as far as it had in the old one.
TEST(Hang, AfterARecoveryTheRightRankIsNamed) {
  Job job("hang-later");
  launch_held(job, {"--spares", "1"});
  ASSERT_TRUE(names(job)) << job.output();
  ASSERT_TRUE(job.kill("MS_NODE_ID=0"));
  // Rank 2 has stopped, so the group is aborted, and step 200 can not be committed any more.
  ASSERT_TRUE(until([&] {
    const auto now = job.whole_status();
    return now.is_object() && now["ranks"][2]["state"] == "waiting for the recovery";
  })) << job.output();
  let_go(job);  // Step 200 is void, and rank 1 holds in it again.
  ASSERT_TRUE(until([&] { return count(job.output(), "rank 1 (process") == 2; })) << job.output();
  EXPECT_FALSE(has(job.output(), "rank 0 (process")) << job.output();
  EXPECT_FALSE(has(job.output(), "rank 2 (process")) << job.output();
  let_go(job);
  EXPECT_EQ(job.wait(120), 0) << job.output();
}

// All wait for the same: nobody holds up anybody.
TEST(Hang, NobodyIsNamedWhileAllWait) {
  Job job("hang-all");
  auto words = toy(job, kSteps, {"--worker_num", "3"});
  words.insert(words.end(), {"--hold", "200"});
  job.launch(words);
  ASSERT_TRUE(job.reaches(1)) << job.output();  // A step takes a thousandth of a second.
  EXPECT_FALSE(until([&] { return has(job.output(), "holds up the job"); }, 4)) << job.output();
  let_go(job);
  EXPECT_EQ(job.wait(120), 0) << job.output();
  EXPECT_FALSE(has(job.output(), "holds up the job")) << job.output();
}

}  // namespace
}  // namespace holdfast::apps
