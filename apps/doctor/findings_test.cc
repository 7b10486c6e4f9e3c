// What `holdfast doctor` makes of a host.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "apps/doctor/findings.h"
#include "apps/doctor/host.h"

namespace holdfast::apps::doctor {
namespace {

constexpr std::uint64_t kGiB = 1 << 30;

// A host on which nothing is to be said.
Host sound() {
  return {.kernel = "6.1.0",
          .machine = "x86_64",
          .processors = 4,
          .can_undo_idle = true,
          .memory = 8 * kGiB,
          .runtime_folder = "/dev/shm",
          .shared_bytes = 4 * kGiB,
          .shared_free = 3 * kGiB,
          .descriptors = 20000,
          .port = 8118,
          .python_stacks = "/usr/bin/py-spy"};
}

TEST(Findings, OfASoundHostAreAllGood) {
  for (const auto& one : judge(sound())) {
    EXPECT_EQ(one.level, Level::kGood) << one.what;
    EXPECT_EQ(one.advice, "") << one.what;
  }
}

struct Case {
  const char* name;
  Level level;
  std::function<void(Host&)> make;
  std::string said;    // Within the finding,
  std::string advice;  // and within its advice.
};

TEST(Findings, NameWhatDoesNotWorkAndWhatToDo) {
  const std::vector<Case> cases = {
      {"an old kernel", Level::kBad, [](Host& h) { h.unwatched = "pidfd_open: no"; },
       "can not be watched (pidfd_open: no)", "Linux 5.4"},
      {"a quota", Level::kNote, [](Host& h) { h.quota = 1.5; }, "the control group gives 1.5",
       "no more ranks"},
      {"Docker's /dev/shm", Level::kNote, [](Host& h) { h.shared_free = 64 << 20; },
       "/dev/shm: 64 MiB free of 4.0 GiB", "--shm-size"},
      {"a full /dev/shm", Level::kBad, [](Host& h) { h.shared_free = 1 << 20; }, "1 MiB free",
       "--shm-size"},
      {"no /dev/shm", Level::kNote, [](Host& h) { h.runtime_folder = "/tmp"; },
       "/dev/shm can not be written to", "mount a tmpfs"},
      {"a limit below /dev/shm", Level::kNote, [](Host& h) { h.memory_limit = 2 * kGiB; },
       "limit is 2.0 GiB, and /dev/shm may hold 4.0 GiB", "killed"},
      {"few files", Level::kNote, [](Host& h) { h.descriptors = 256; }, "open files: 256",
       "ulimit -n"},
      {"small files", Level::kBad, [](Host& h) { h.file_size = 1 << 20; }, "1 MiB at most",
       "ulimit -f"},
      {"priorities", Level::kNote, [](Host& h) { h.can_undo_idle = false; }, "lower priority",
       "ulimit -e 20"},
      {"dead jobs", Level::kNote, [](Host& h) { h.dead_jobs = 3; }, "memory: 3", "holdfast clean"},
      {"a taken port", Level::kNote, [](Host& h) { h.port_taken = "in use"; },
       "8118 of the scheduler can not be had: in use", "--master_port"},
      {"no py-spy", Level::kNote, [](Host& h) { h.python_stacks = ""; }, "without its stack",
       "pip install py-spy"},
      {"a wrong setting", Level::kBad, [](Host& h) { h.wrong_setting = "HOLDFAST_X is wrong"; },
       "HOLDFAST_X is wrong", ""},
  };
  for (const auto& each : cases) {
    Host host = sound();
    each.make(host);
    const auto all = judge(host);
    const auto found = std::find_if(all.begin(), all.end(),
                                    [](const Finding& one) { return one.level != Level::kGood; });
    ASSERT_NE(found, all.end()) << each.name;
    EXPECT_EQ(found->level, each.level) << each.name;
    EXPECT_NE(found->what.find(each.said), std::string::npos) << found->what;
    EXPECT_NE(found->advice.find(each.advice), std::string::npos) << found->advice;
    const auto others = std::count_if(all.begin(), all.end(),
                                      [](const Finding& one) { return one.level != Level::kGood; });
    EXPECT_EQ(others, 1) << each.name;
  }
}

TEST(Findings, OfThisHostNameItsSettingsButNoValues) {
  const char* const environment[] = {"HOLDFAST_JOB=secret", "PATH=/bin", "HOLDFAST_JBO=1", nullptr};
  const Host host = look(0, environment);
  EXPECT_EQ(host.unwatched, "");
  EXPECT_GT(host.processors, 0);
  EXPECT_GT(host.memory, 0U);
  EXPECT_GT(host.shared_bytes, 0U);
  EXPECT_EQ(host.set, (std::vector<std::string>{"HOLDFAST_JBO", "HOLDFAST_JOB"}));
  EXPECT_NE(host.wrong_setting.find("HOLDFAST_JBO"), std::string::npos) << host.wrong_setting;
  for (const auto& one : judge(host)) EXPECT_EQ(one.what.find("secret"), std::string::npos);
}

}  // namespace
}  // namespace holdfast::apps::doctor
