// prepare(): finds out all that can be wrong with a launch before anything is started.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "config/settings.h"
#include "runtime/agent/agent.h"

namespace holdfast::runtime {

struct Launch {
  std::vector<std::string> argv;         // argv[0]: the path of the program.
  std::vector<std::string> environment;  // What all processes of the job have in common.
  config::Settings settings;             // As those processes will read them.
  std::string log_directory;             // Absolute; there.
  std::string job_directory;             // There.
  std::vector<std::string> remarks;      // For the user.
};

// What is wrong, and the exit code for it.
struct Unlaunchable {
  Error error;
  int exit_code = kExitUsage;
};

// Looks for the program, composes the environment, reads the settings as the processes will, probes
// the port, and at last makes the folders. Leaves no thread behind. `say` hears what it waits for.
std::variant<Launch, Unlaunchable> prepare(const AgentOptions& options,
                                           const std::function<void(std::string)>& say);

}  // namespace holdfast::runtime
