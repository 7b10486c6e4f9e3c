// The agent: starts the processes of a job on this host, watches and replaces them (msrun).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "runtime/agent/launcher.h"
#include "runtime/agent/terminal.h"

namespace holdfast::runtime {

// What an agent that ran the scheduler, or stood by for it, has left of a job.
struct Ended {
  std::string log_directory;                    // With kReports and kLastStatus, if there are any.
  std::chrono::system_clock::time_point began;  // When this agent began.
};

struct AgentOptions {
  std::vector<std::string> program;  // The training program and its arguments.
  std::shared_ptr<const Launcher> launcher = std::make_shared<Launcher>();  // Starts the program.
  std::vector<std::string> server;       // The command of a parameter server.
  std::vector<std::string> environment;  // The environment of msrun itself, as NAME=value.
  std::int32_t worker_num = 1;           // Workers of the whole job.
  std::int32_t local_worker_num = 1;     // Workers of this host.
  std::int32_t server_num = 0;           // Parameter servers of the whole job.
  std::int32_t local_server_num = 0;     // Those of this host,
  std::int32_t first_server = 0;         // whose numbers among the servers count up from this one.
  std::int32_t node_rank = 0;            // This agent's number among the agents of the job, from 0.
  std::int32_t first_rank = 0;  // The node ids of this host's workers count up from this number.
  bool runs_scheduler = true;   // master_addr is an address of this host.
  std::shared_ptr<Terminal> terminal = std::make_shared<Terminal>();
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 8118;
  std::string log_dir = ".";
  bool join = false;              // Stay in the foreground until the job's end.
  std::int32_t max_restarts = 3;  // Restarts of one place with no step made between them.
  std::int32_t spares = 0;        // Processes that wait to take over a place.
  // This host starts without places: `local_worker_num` spares wait for those of a lost host.
  bool spare_host = false;
  bool oversubscribe = false;  // This host takes the places of a lost host besides its own.
  // Other agents start parts of the job, even if the two numbers of workers are equal.
  bool several = false;
  bool bound_spares = false;  // One spare for each place; `spares` is ignored.
  bool continues = false;     // Resumes a job whose agent died on this host (--continue).
  bool usr1_ends = false;     // SIGUSR1 ends the job as SIGTERM does, but workers get SIGUSR1.
  bool usr2_ends = false;     // Likewise. Without it, the workers get the signal, and go on.
  bool as_torchrun = false;   // Messages name the options as torchrun spells them.
  // Called at the end, if set. Returns a sentence for the user; empty: none.
  std::function<std::string(const Ended&)> at_end;
};

// Whether no other agent starts a part of the job.
[[nodiscard]] bool is_alone(const AgentOptions& options);

// How the user of `options` writes an option: "--nproc-per-node" for "--worker_num".
[[nodiscard]] std::string spelled(const AgentOptions& options, std::string_view option);

inline constexpr int kExitUsage = 2;        // Nothing was started: wrong settings, port taken.
inline constexpr int kExitNoProgram = 127;  // The program can not be started.

// Runs this host's part of the job to its end: in the foreground (join), or in a new background
// process, in which case it returns when the processes have been started.
//
// Requires: called in the main thread, and there is no other thread: it forks, and the children die
// with the thread that started them. Returns the exit code: 0 on success; the failed worker's code,
// or 1; kExitUsage; kExitNoProgram; 128 + signal if interrupted. The terminal shows all that a user
// has to know. At the end no process of the job runs on this host, and its runtime folder is gone;
// the recovery reports are then in <log_dir>/recoveries.jsonl.
[[nodiscard]] int run_agent(const AgentOptions& options);

}  // namespace holdfast::runtime
