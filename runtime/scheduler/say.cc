#include "runtime/scheduler/say.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string>

#include "base/text.h"
#include "base/utc.h"

namespace holdfast::runtime {

void say(std::string_view text) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  char milliseconds[8];
  std::snprintf(milliseconds, sizeof milliseconds, ".%03ld ", now.tv_nsec / 1000000 % 1000);
  const std::string line = cat(utc(now.tv_sec), milliseconds, "scheduler: ", text, "\n");
  // Not through stdio: the process may be killed before anybody flushes.
  (void)!::write(STDOUT_FILENO, line.data(), line.size());
}

}  // namespace holdfast::runtime
