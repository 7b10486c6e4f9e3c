// Every option of MindSpore's msrun, in `msrun` and in `holdfast run`: it does what it says, or is
// refused with a reason. python/tests/test_core_options.py reads the same table for Python.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/testing/job.h"
#include "base/text.h"
#include "os/files.h"

namespace holdfast::apps {
namespace {

// Rows of an option, its exit code (2: refused), and words that the output must have.
nlohmann::json table() {
  const auto text = os::read_file(cat(HOLDFAST_SOURCE_DIR, "/apps/testing/msrun_options.json"));
  return nlohmann::json::parse(text ? *text : std::string("[]"));
}

TEST(Options, DoWhatTheySayOrAreRefusedWithAReason) {
  const auto rows = table();
  ASSERT_GT(rows.size(), 20U);
  for (const std::vector<std::string>& program :
       {std::vector<std::string>{MSRUN}, std::vector<std::string>{HOLDFAST, "run"}}) {
    for (const auto& row : rows) {
      const std::string option = row[0], words = row[2];
      const int code = row[1];
      SCOPED_TRACE(program.back() + " " + option);
      Job job("options");
      auto command = program;
      for (const std::string& word :
           {cat("--master_port=", job.port), "--log_dir=" + job.logs, std::string("--worker_num=1"),
            std::string("--join=True"), option, std::string("/bin/sh"), std::string("-c"),
            std::string("echo within $MS_TOPO_TIMEOUT")}) {
        command.push_back(word);
      }
      const auto process = job.start(command, {"MS_TOPO_TIMEOUT=55"});
      EXPECT_EQ(job.wait(process, 30), code) << job.output();
      EXPECT_TRUE(has(job.output(), words)) << job.output();
      if (code != 0) continue;
      const bool limits = option.starts_with("--cluster_time_out=");
      EXPECT_EQ(job.log("worker_0.log"),
                cat("within ", limits ? option.substr(option.find('=') + 1) : "55", "\n"));
    }
  }
}

std::string refused_by(const std::vector<std::string>& command) {
  Job job("options");
  EXPECT_EQ(job.wait(job.start(command, {}), 30), 2);
  return job.output();
}

// For an option of torchrun, the error names the command that takes it. A mistyped option is not
// taken for one of torchrun.
TEST(Options, OfTorchrunAreRefusedWithTheCommandThatTakesThem) {
  for (const char* option : {"--nproc-per-node=2", "--nproc_per_node=2", "--rdzv-id=a", "-m"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find('='));
    const std::string words = refused_by({HOLDFAST, "run", option, "true"});
    EXPECT_TRUE(has(words, cat("holdfast run: unknown option ", name, " (--help"))) << words;
    EXPECT_TRUE(has(words, cat("python3 -m holdfast run ", option, " ..."))) << words;
  }
  const std::string words = refused_by({HOLDFAST, "run", "--nproc=2", "true"});
  EXPECT_TRUE(has(words, "unknown option --nproc")) << words;
  EXPECT_FALSE(has(words, "torchrun")) << words;
}

// What follows the program is the program's.
TEST(Options, MayBeSpelledWithAMinusSign) {
  Job job("minus");
  job.launch({"--worker-num=1", "--log-dir", job.logs, "--join", "True", "sh", "-c", "echo \"$@\"",
              "sh", "--log-dir"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(job.log("worker_0.log"), "--log-dir\n");
}

// The help describes how several hosts start a job.
TEST(Options, HelpSaysHowAJobOfSeveralHostsIsStarted) {
  Job job("options");
  EXPECT_EQ(job.wait(job.start({MSRUN, "--help"}, {}), 30), 0);
  EXPECT_TRUE(has(job.output(), "A job of several hosts is\nstarted by one msrun on each"))
      << job.output();
  EXPECT_FALSE(has(job.output(), "This host's number")) << job.output();
}

TEST(Options, VariablesWithoutEffectSayWhatHoldsInstead) {
  Job job("gone");
  for (const char* name : {"MS_HCCL_CM_INIT", "MS_CLUSTER_RETRY_NUM", "MS_RECOVERY_INTERVAL",
                           "MS_DISABLE_HEARTBEAT"}) {
    job.environment.push_back(cat(name, "=1"));
  }
  job.launch({"--worker_num=1", "--join=True", "true"});
  EXPECT_EQ(job.wait(), 0);
  for (const char* sentence :
       {"MS_HCCL_CM_INIT has no effect: all groups share the same links anyway",
        "MS_CLUSTER_RETRY_NUM has no effect: MS_TOPO_TIMEOUT says",
        "MS_RECOVERY_INTERVAL has no effect: every change",
        "MS_DISABLE_HEARTBEAT has no effect: silence is always noticed"}) {
    EXPECT_EQ(count(job.output(), sentence), 1U) << job.output();
  }
}

}  // namespace
}  // namespace holdfast::apps
