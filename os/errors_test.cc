// Errors of the system name what was refused, and the limit that was met.
#include "os/errors.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace holdfast::os {
namespace {

TEST(Errors, NameTheLimitAndNothingElse) {
  EXPECT_TRUE(system_error("x", EMFILE).what.ends_with("(`ulimit -n`)"));
  EXPECT_TRUE(system_error("x", ENFILE).what.ends_with("(sysctl fs.file-max)"));
  EXPECT_TRUE(system_error("x", ENOSPC).what.ends_with("free some room there"));
  EXPECT_EQ(system_error("x", EAGAIN).what, "x: Resource temporarily unavailable");
  EXPECT_EQ(no_task("x", ENOENT).what, "x: No such file or directory");
  EXPECT_EQ(no_task("x", EMFILE).what, system_error("x", EMFILE).what);
  for (const char* limit : {"ulimit -u", "pids.max", "kernel.pid_max"}) {
    EXPECT_NE(no_task("x", EAGAIN).what.find(limit), std::string::npos);
  }
}

}  // namespace
}  // namespace holdfast::os
