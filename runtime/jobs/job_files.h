// Job files: what the processes of a job write into its runtime folder, and which jobs are on this
// host. `holdfast status` and `holdfast clean` find jobs by these files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::runtime {

// What a scheduler or an agent writes about itself into the job's folder.
struct Keeper {
  std::string job;
  std::string host;              // Where the scheduler listens.
  std::uint16_t port = 0;        // The scheduler's port; for an agent that runs no scheduler: 0.
  std::uint16_t sched_port = 0;  // Agents only: the scheduler's port, on whatever host.
  std::string token_file;        // Agents only: what HOLDFAST_TOKEN_FILE names; absolute.
  std::string log_dir;           // Agents only: the log folder.
  std::uint64_t run = 0;         // Agents only: HOLDFAST_RUN.
  std::string program;           // Agents only: the program and its arguments, one on a line.
  std::string memory;            // Agents only: os::shared_memory_name().
  std::int32_t node_rank = 0;    // Agents only: --node_rank.
  // These two identify the log folder, which may have another name in another mount namespace
  // (container).
  std::uint64_t log_device = 0;
  std::uint64_t log_inode = 0;
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // With the pid it names one process (os/process.h).
};

// Fails if another agent uses this log folder, and names that agent. Agents of one job with
// different node ranks may share a folder, because their logs have different names.
Status check_log_folder(Keeper keeper);

// Records this process in the job's folder as the scheduler or as an agent. Fills in its pid, its
// start time, and the log folder's numbers. The file stays locked until the process has ended.
// write_agent_file() makes the job's folder again if it is gone, and refuses an agent as
// check_log_folder() does. Call these before anything else is put into the folder: a dead job of
// the same name may have left it, and until then `holdfast clean` may remove it.
Status write_scheduler_file(const std::string& directory, Keeper keeper);
Status write_agent_file(const std::string& directory, Keeper keeper);

// Removes the folder if it is empty. For an agent that does not start its job.
void remove_unused(const std::string& directory);

// Removes the folder with all in it, unless another agent of the job runs on this host. Returns
// whether it was removed.
Result<bool> remove_job_files(const std::string& directory);

struct FoundJob;
// For `holdfast clean`: removes the folder of a job that was found dead, unless a process has begun
// to need it since. Returns whether it was removed.
Result<bool> remove_if_still_dead(const FoundJob& job);

// What a scheduler leaves for people, and the agent copies to the log folder: its reports of the
// job's recoveries, one on a line; and the job's last status (docs/formats/runtime-folder.md).
inline constexpr const char* kReports = "recoveries.jsonl";
inline constexpr const char* kLastStatus = "last_status.json";
// What `holdfast` makes of them there.
inline constexpr const char* kPicture = "recoveries.svg";
// Such a file of the job's folder. Empty: there is none.
std::string read_left(const std::string& directory, const char* name);

// A job's runtime folder as it is found.
struct FoundJob {
  std::string name;
  std::string directory;
  std::optional<Keeper> scheduler;  // The last one recorded, alive or dead.
  std::optional<Keeper> agent;      // One of the agents that live.
  std::vector<Keeper> dead_agents;  // The newest last.
  bool scheduler_alive = false;
  bool agent_alive = false;
  bool master_alive = false;  // The agent that runs the scheduler is alive.
  bool starting = false;      // Made within the last minute, and no process is recorded yet.
  bool solo_alive = false;    // The process that trains alone here (solo_folder.h) is alive.
  // Living processes that have a file of the folder open or mapped. Also those that an agent in
  // another PID namespace started, because nobody here can know whether that agent lives.
  std::vector<pid_t> users;
  // Living processes that an agent of the job started, if no agent of the job lives any more: they
  // run under a wrapper (bash train.sh), which did not end with the agent. They are not among the
  // users.
  std::vector<pid_t> orphans;
  // Whether any process still needs the folder.
  [[nodiscard]] bool alive() const {
    return scheduler_alive || agent_alive || solo_alive || starting || !users.empty();
  }
};

// Ends the job's orphans, and waits 5 s at most until they are gone. Returns those that are left.
std::vector<pid_t> end_orphans(const FoundJob& job);

// All job folders of this user, by name. In other PID namespaces (containers that share /dev/shm),
// jobs_on_this_host() sees whether agents, schedulers and processes without a launcher live, but no
// users.
struct FoundJobs {
  std::vector<FoundJob> jobs;
  // A sentence for each thing in a folder's place that is no folder of this user alone
  // (os/folder.h), or that could not be opened. Nothing in it was looked at.
  std::vector<std::string> left_alone;
};
FoundJobs jobs_on_this_host();

}  // namespace holdfast::runtime
