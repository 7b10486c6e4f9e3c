// Terminal: shows on stdout and stderr how a job goes. All calls come from one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/ids.h"
#include "wire/messages.h"

namespace holdfast::runtime {

struct JobEnd {
  int exit_code = 0;          // 0: in good order.
  std::string reason;         // Why it failed, or who ended it.
  bool was_asked = false;     // Somebody ended it, by an order or a signal.
  std::string log_directory;  // Where all logs are.
  std::string failed_log;     // The log of the process that failed; empty: there is none.
  std::size_t recoveries = 0;
  std::string reports;  // The file that tells of each recovery.
};

class Terminal {
 public:
  // A sentence that people have to read.
  void say(const std::string& text);
  // Shows the state of the job in one line, which the next call replaces. `alive` of this host's
  // `local` processes live. Shows nothing if stdout is no terminal.
  void show(const wire::JobProgress& progress, std::size_t alive, std::int32_t local);
  void show(const JobEnd& end);

 private:
  // Steps in a second, of the last second or longer; empty: not known yet.
  std::string rate(Version made);

  bool line_shown_ = false;
  Version counted_ = kNoVersion;  // The step at which `rate_` was found last,
  Instant counted_at_{};          // and when that was.
  std::string rate_;
};

}  // namespace holdfast::runtime
