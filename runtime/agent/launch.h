// prepare(): finds out all that can be wrong with a launch before anything is started.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "config/settings.h"
#include "runtime/agent/agent.h"
#include "runtime/agent/passwords.h"

namespace holdfast::runtime {

struct Launch {
  std::vector<std::string> argv;         // argv[0]: the path of the program.
  std::vector<std::string> environment;  // What all processes of the job have in common.
  config::Settings settings;             // As those processes will read them.
  std::string log_directory;             // Absolute; there.
  std::string job_directory;             // There, but this agent is not written down in it yet.
  std::vector<std::string> remarks;      // For the user.
  bool runs_scheduler = false;           // That of the job's start.
  bool stands_by = false;                // A scheduler that takes the job over, by etcd's lease.
  Passwords passwords;                   // To be left in the job's directory.
};

// Composes the environment, reads the settings as the processes will, probes the port, and at last
// makes the folders. Leaves no thread behind. The terminal shows what it waits for.
Result<Launch> prepare(const AgentOptions& options, Words argv);

// The program with its arguments, one on a line, without what `holdfast run` draws for each start.
std::string program_of(const AgentOptions& options);

}  // namespace holdfast::runtime
