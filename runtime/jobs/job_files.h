// What the processes of a job write into its runtime folder, and which jobs are on this host.
// `holdfast status` and `holdfast clean` find jobs by it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::runtime {

// A process of a job: the scheduler, or an agent.
struct Keeper {
  std::string job;
  std::string host;              // Where the scheduler listens.
  std::uint16_t port = 0;        // The scheduler's port; an agent's is 0 if it runs no scheduler.
  std::uint16_t sched_port = 0;  // An agent's: the scheduler's port, wherever that runs.
  std::string token_file;        // An agent's: what HOLDFAST_TOKEN_FILE names; absolute.
  std::string log_dir;           // An agent's.
  std::uint64_t run = 0;         // An agent's: HOLDFAST_RUN.
  std::string program;           // An agent's: with its arguments, one on a line.
  std::string memory;            // An agent's: os::shared_memory_name().
  std::int32_t node_rank = 0;    // An agent's.
  // Identify its log folder, which may have another name in another mount namespace (container).
  std::uint64_t log_device = 0;
  std::uint64_t log_inode = 0;
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // With the pid it names one process (os/process.h).
};

// Fails if another agent uses this log folder, and names that agent. Agents of one job with
// different node ranks may share a folder, because their logs have different names.
Status check_log_folder(Keeper keeper);

// Writes this process down as the job's scheduler or as one of its agents. Fills in its pid, its
// start time, and the log folder's numbers. The file stays locked until the process has ended. An
// agent that has to share its log folder is refused, as by check_log_folder(). It makes the folder
// again if it is gone. Before it is written down, nothing may be left there: a dead job of its name
// may have left the folder, and `holdfast clean` may remove it.
Status write_scheduler_file(const std::string& directory, Keeper keeper);
Status write_agent_file(const std::string& directory, Keeper keeper);

// Removes the folder if it is empty. For an agent that does not start its job.
void remove_unused(const std::string& directory);

// Removes the folder with all in it, unless another agent of the job runs on this host. Returns
// whether it was removed.
Result<bool> remove_job_files(const std::string& directory);

struct FoundJob;
// For `holdfast clean`: removes the folder of a job that was found dead, unless somebody has begun
// to need it since. Returns whether it was removed.
Result<bool> remove_if_still_dead(const FoundJob& job);

// The scheduler's reports of the job's recoveries, one on a line. Empty if there are none.
std::string read_reports(const std::string& directory);

// A job's runtime folder as it is found.
struct FoundJob {
  std::string name;
  std::string directory;
  std::optional<Keeper> scheduler;  // As written down, alive or not.
  std::optional<Keeper> agent;      // One that lives.
  std::vector<Keeper> dead_agents;  // The newest last.
  bool scheduler_alive = false;
  bool agent_alive = false;
  bool master_alive = false;  // The agent that runs the scheduler.
  bool starting = false;      // Made within the last minute, and nobody is written down yet.
  bool solo_alive = false;    // The process that is a world of its own.
  // Living processes that have a file of the folder open or mapped. Also those that an agent in
  // another PID namespace started, because nobody here can know whether that agent lives.
  std::vector<pid_t> users;
  // Living processes that an agent of the job started, if no agent of the job lives any more. Their
  // wrapper outlived it (bash train.sh). They are not among the users.
  std::vector<pid_t> orphans;
  // Whether any process still needs the folder.
  [[nodiscard]] bool alive() const {
    return scheduler_alive || agent_alive || solo_alive || starting || !users.empty();
  }
};

// Ends the job's orphans, and waits 5 s at most until they are gone. Returns those that are left.
std::vector<pid_t> end_orphans(const FoundJob& job);

// All job folders of this user, by name. In other PID namespaces (containers that share /dev/shm),
// it sees whether agents, schedulers and processes without a launcher live, but no users.
struct FoundJobs {
  std::vector<FoundJob> jobs;
  // A sentence for each thing in a folder's place that is no folder of this user alone
  // (os/folder.h), or that could not be opened. Nothing in it was looked at.
  std::vector<std::string> left_alone;
};
FoundJobs jobs_on_this_host();

}  // namespace holdfast::runtime
