#include "runtime/jobs/leader_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/text.h"
#include "os/files.h"
#include "os/host.h"

namespace holdfast::runtime {
namespace {

TEST(LeaderFile, SaysWhereTheSchedulerIs) {
  config::Settings settings;
  settings.job = cat("leader-file-", ::getpid());
  settings.sched_host = "10.0.0.1";
  settings.sched_port = 8118;
  const auto directory = os::runtime_directory(settings.job);
  ASSERT_TRUE(directory);
  const SchedulerAddress there{"fd00::2", 65535, 1234567890123};
  ASSERT_TRUE(write_leader_file(*directory, there));
  EXPECT_EQ(read_leader_file(*directory), there);
  EXPECT_EQ(scheduler_of(settings), (SchedulerAddress{"10.0.0.1", 8118, 0})) << "without etcd";
  settings.etcd = "http://h1";
  EXPECT_EQ(scheduler_of(settings), there);
  for (const char* text : {"", "\n", "h", "h 1", "h 1 2", " 1 2\n", "h  2\n", "h 1 \n", "h x 2\n",
                           "h 70000 2\n", "h 1 2 3\n"}) {
    ASSERT_TRUE(os::write_file_atomically(cat(*directory, "/leader"), text, 0600));
    EXPECT_FALSE(read_leader_file(*directory)) << text;
    EXPECT_EQ(scheduler_of(settings).host, "10.0.0.1");
  }
  ::unlink(cat(*directory, "/leader").c_str());
  ::rmdir(directory->c_str());
}

}  // namespace
}  // namespace holdfast::runtime
