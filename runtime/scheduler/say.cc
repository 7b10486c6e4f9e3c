#include "runtime/scheduler/say.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string>

#include "base/text.h"

namespace holdfast::runtime {

void say(std::string_view text) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  char stamp[64];
  const std::size_t length = std::strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(stamp + length, sizeof(stamp) - length, ".%03ld ", now.tv_nsec / 1000000);
  const std::string line = cat(stamp, "scheduler: ", text, "\n");
  // Not through stdio: the process may be killed before anybody flushes.
  (void)!::write(STDOUT_FILENO, line.data(), line.size());
}

}  // namespace holdfast::runtime
