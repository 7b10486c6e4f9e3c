// The agent: starts the processes of a job on this host, watches and replaces them (msrun).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "runtime/agent/launcher.h"
#include "runtime/agent/terminal.h"

namespace holdfast::runtime {

struct AgentOptions {
  std::vector<std::string> program;                                         // With its arguments.
  std::shared_ptr<const Launcher> launcher = std::make_shared<Launcher>();  // Starts it.
  std::vector<std::string> environment;  // Of msrun itself, as NAME=value.
  std::int32_t worker_num = 1;           // Of the whole job.
  std::int32_t local_worker_num = 1;     // Of this host.
  std::int32_t node_rank = 0;            // Of this host.
  std::int32_t first_rank = 0;           // Its node ids begin there.
  bool runs_scheduler = true;            // This host is master_addr's.
  std::shared_ptr<Terminal> terminal = std::make_shared<Terminal>();
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 8118;
  std::string log_dir = ".";
  bool join = false;              // Stay in the foreground until the job's end.
  std::int32_t max_restarts = 3;  // Of one place, without a step made in between.
  std::int32_t spares = 0;        // Processes that wait to take over a place.
  // This host has no places until another one is lost: `local_worker_num` spares wait for its.
  bool spare_host = false;
  bool oversubscribe = false;  // This host takes the places of a lost one besides its own.
  bool several = false;        // Other agents start parts of the job, whatever the numbers say.
  bool bound_spares = false;   // One for each place, in place of `spares` for any.
  bool continues = false;      // Takes up a job whose agent has died on this host.
  bool as_torchrun = false;    // Its user knows torchrun's names of the options, not msrun's.
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
// Requires: called in the main thread while there is no other (it forks; and the children die with
// the thread that started them). Returns the exit code: 0, the failed worker's own or 1,
// kExitUsage, kExitNoProgram, 128 + signal where interrupted. The terminal
// shows all that a user has to know. At the end no process of the job runs on this host and its
// runtime folder is gone; the recovery reports are then in <log_dir>/recoveries.jsonl.
[[nodiscard]] int run_agent(const AgentOptions& options);

}  // namespace holdfast::runtime
