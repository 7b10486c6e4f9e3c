// View: what an agent tells people while it runs a job. The apps decide how it looks.
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

// All calls come from one thread.
class View {
 public:
  View() = default;
  virtual ~View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  // A sentence that people have to read.
  virtual void say(const std::string& text) = 0;
  // How the job is now. `alive` of this host's `local` processes live.
  virtual void show(const wire::JobProgress& progress, std::size_t alive, std::int32_t local) = 0;
  virtual void show(const JobEnd& end) = 0;
  // The launch is over for this process: another one runs the job.
  virtual void show_background(const std::string& job, pid_t process,
                               const std::string& log_directory) = 0;
};

}  // namespace holdfast::runtime
