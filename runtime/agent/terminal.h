// Terminal: shows on stdout and stderr how a job goes. All calls come from one thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "wire/messages.h"

namespace holdfast::runtime {

struct JobEnd {
  int exit_code = 0;          // 0: in good order.
  std::string reason;         // Why it failed.
  std::string log_directory;  // Where all logs are.
  std::string failed_log;     // Of the process that failed; empty: none did, or it has no log.
  std::size_t recoveries = 0;
  std::string reports;  // The file that tells of each recovery.
};

class Terminal {
 public:
  // A sentence that people have to read.
  void say(const std::string& text);
  // How the job is now. `alive` of this host's `local` processes live. One line, which the next
  // call replaces; nothing where stdout is no terminal.
  void show(const wire::JobProgress& progress, std::size_t alive, std::int32_t local);
  void show(const JobEnd& end);

 private:
  bool line_shown_ = false;
};

}  // namespace holdfast::runtime
