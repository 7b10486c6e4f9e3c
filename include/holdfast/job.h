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
  // Ends this rank's part of the job in good order. Waits until the scheduler knows, at most for
  // HOLDFAST_SCHEDULER_TIMEOUT. While an exception is in flight it does not: then the rank counts
  // as failed, and is replaced.
  ~Job();
  Job(Job&&) noexcept;
  Job& operator=(Job&&) = delete;

  // Both wait until the ranks are given. A spare waits here for a rank that has lost its process:
  // ask as late as possible, so that all that comes before is ready by then. Throws Failure.
  [[nodiscard]] int rank() const;
  [[nodiscard]] int world_size() const;

 private:
  explicit Job(std::shared_ptr<detail::JobParts> parts);
  friend Job init();
  friend class State;
  std::shared_ptr<detail::JobParts> parts_;
};

// What MindSpore's set_ps_context says of the secure channel, with its names.
struct PsContext {
  std::string config_file_path;  // config.json: docs/security.md.
  bool enable_ssl = false;
  std::string client_password;  // Empty: from where the settings say.
  std::string server_password;
};

// Before init(): with `enable_ssl`, all connections of this process to its scheduler are under
// mutual TLS (docs/security.md). Wipes both passwords. Throws Failure for a wrong file or password,
// naming it; if it is caught, init() fails.
void set_ps_context(PsContext&& context);

// Joins the job that the environment names (docs/settings.md; msrun sets it). Without MS_ROLE the
// process trains alone. In the scheduler's process the job is served in here and the process exits:
// what follows never runs there. Returns at once otherwise. Call it once, in the main thread, first
// of all. Throws Failure for a wrong setting, naming it.
[[nodiscard]] Job init();

}  // namespace holdfast
