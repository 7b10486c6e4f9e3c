// Job: what this process is part of. The first line of a training program makes it.
#pragma once

#include <memory>
#include <string>

#include "holdfast/failure.h"  // IWYU pragma: export

namespace holdfast {

namespace detail {
struct JobParts;
}

class Job {
 public:
  // Tells the scheduler that this rank has ended well, and waits for the confirmation
  // (HOLDFAST_SCHEDULER_TIMEOUT at most). If an exception destroys the Job it tells nothing: the
  // rank counts as failed, and is replaced.
  ~Job();
  Job(Job&&) noexcept;
  Job& operator=(Job&&) = delete;

  // Both wait until this process has its rank. A spare waits here until a rank has lost its
  // process. So call them as late as possible: what comes before is done by then. They throw
  // Failure.
  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;

 private:
  explicit Job(std::shared_ptr<detail::JobParts> parts);
  friend Job init();
  friend class State;
  std::shared_ptr<detail::JobParts> parts_;
};

// The TLS arguments of MindSpore's set_ps_context(), under the same names.
struct PsContext {
  std::string config_file_path;  // config.json: docs/security.md.
  bool enable_ssl = false;
  std::string client_password;  // Either one empty: taken from where the settings say.
  std::string server_password;
};

// Call it before init(). With `enable_ssl`, all connections of this process to its scheduler use
// mutual TLS (docs/security.md). Wipes both passwords. Throws Failure for a wrong file or password,
// and names it; if the program catches that, init() fails.
void set_ps_context(PsContext&& context);

// Joins the job that the environment names (docs/settings.md; msrun sets it), and returns at once.
// Without MS_ROLE the process trains alone. In the scheduler's process init() does not return: it
// serves the job and exits the process. Call it once, in the main thread, before all else. Throws
// Failure for a wrong setting, and names it.
[[nodiscard]] Job init();

}  // namespace holdfast
