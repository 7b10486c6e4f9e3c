// AgentWatch: which agents count as gone.
#include "runtime/jobs/agent_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

bool gone(const std::string& words) {
  config::Settings settings;
  settings.agent = words;
  return AgentWatch(settings).gone();
}

TEST(AgentWatch, SeesTheEndThatCameBeforeIt) {
  const auto start_time = os::start_time(::getpid());
  const auto place = os::pid_namespace();
  ASSERT_TRUE(start_time && place);
  EXPECT_EQ(AgentWatch::words_for_this_process(), cat(::getpid(), ':', *start_time, ':', *place));
  EXPECT_FALSE(gone(AgentWatch::words_for_this_process()));
  // The pid names another process by now.
  EXPECT_TRUE(gone(cat(::getpid(), ':', *start_time + 1, ':', *place)));
  // No process has a number as high (PID_MAX_LIMIT).
  EXPECT_TRUE(gone(cat(1 << 23, ':', *start_time, ':', *place)));
}

TEST(AgentWatch, WatchesNobodyOfAnotherPidNamespaceNorWithoutAnAgent) {
  EXPECT_FALSE(gone(cat(1 << 23, ":1:", *os::pid_namespace() + 1)));
  EXPECT_FALSE(gone(""));
}

}  // namespace
}  // namespace holdfast::runtime
