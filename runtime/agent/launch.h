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
  std::vector<std::string> environment;  // The part that all processes of the job have in common.
  config::Settings settings;             // As the job's processes will read them.
  std::string log_directory;             // Absolute path. It exists.
  std::string job_directory;             // It exists, but this agent is not recorded in it yet.
  std::vector<std::string> remarks;      // Sentences to show to the user.
  bool runs_scheduler = false;           // This host runs the job's first scheduler.
  bool stands_by = false;                // This host runs a scheduler that stands by (etcd).
  std::vector<std::string> ancestors;    // Snapshots that the job may begin with, newest first.
  Passwords passwords;                   // For Passwords::leave_in(job_directory).
};

// Composes the environment, reads the settings as the processes will, probes the port, and at last
// makes the folders. Leaves no thread behind. The terminal shows what it waits for.
Result<Launch> prepare(const AgentOptions& options, Words argv);

// The program and its arguments, one on a line, without what `holdfast run` puts before them: words
// of its own, of which the last is drawn anew for each start.
std::string program_of(const AgentOptions& options);

// Removes what the scheduler of a former job has left in the log folder.
void forget_reports(const Launch& launch);
// Copies what the scheduler has left to the log folder, where it outlives the job's folder.
void keep_reports(const Launch& launch, Terminal& terminal);

}  // namespace holdfast::runtime
