#include "runtime/jobs/job_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>

#include "base/text.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/folder.h"
#include "os/host.h"
#include "os/process.h"
#include "runtime/jobs/solo_folder.h"

namespace holdfast::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Keeper, job, host, port, sched_port, token_file,
                                                log_dir, run, program, memory, node_rank,
                                                log_device, log_inode, pid, start_time)

namespace {

namespace fs = std::filesystem;

constexpr const char* kSchedulerFile = "scheduler.json";
constexpr const char* kAgentPrefix = "agent-";

std::string own_agent_file() {
  return cat(kAgentPrefix, ::getpid(), ".json");
}

// The job's folder, which must be there.
Result<os::Folder> open_folder(const std::string& directory) {
  auto folder = os::open_runtime_directory(directory);
  if (!folder || *folder) return folder;
  return Error{Blame::kWorld, cat("the job's folder ", directory, " is gone: who removed it?")};
}

Status write_keeper(const std::string& directory, const std::string& name, Keeper keeper) {
  const auto folder = open_folder(directory);
  if (!folder) return folder.error();
  keeper.pid = ::getpid();
  keeper.start_time = os::start_time(keeper.pid).value_or(0);
  const nlohmann::json json = keeper;
  auto file = folder->write_locked(
      name, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  if (!file) return file.error();
  (void)file->release();  // The end of the process closes it.
  return {};
}

// Fields that are missing in the file keep their defaults.
std::optional<Keeper> read_keeper(const os::Folder& folder, const std::string& name) try {
  const auto text = folder.read(name);
  if (!text) return std::nullopt;
  return nlohmann::json::parse(*text).get<Keeper>();
} catch (const nlohmann::json::exception&) {  // The file is damaged.
  return std::nullopt;
}

// The lock also tells of a process in another PID namespace, whose number means another process
// here.
bool alive(const os::Folder& folder, const std::string& name, const Keeper& keeper) {
  return (keeper.pid > 0 && os::same_process_alive(keeper.pid, keeper.start_time)) ||
         folder.is_locked(name);
}

// Compares the start times as well, because processes in two containers may have the same pid.
bool is_this_process(const Keeper& keeper) {
  return keeper.pid == ::getpid() && keeper.start_time == os::start_time(keeper.pid);
}

bool is_same_process(const std::optional<Keeper>& one, const std::optional<Keeper>& other) {
  return one && other && one->pid == other->pid && one->start_time == other->start_time;
}

// A job that is just beginning has only a folder.
bool is_starting(const os::Folder& folder) {
  for (const auto& name : folder.names()) {
    if (name == kSchedulerFile || name.starts_with(kAgentPrefix)) return false;
  }
  struct stat about {};
  return ::fstat(folder.get(), &about) == 0 && ::time(nullptr) - about.st_mtim.tv_sec < 60;
}

// The job's agents other than this process: those that live, or else those that have died.
std::vector<Keeper> other_agents(const os::Folder& folder, bool living = true) {
  std::vector<Keeper> agents;
  for (const auto& name : folder.names()) {
    if (!name.starts_with(kAgentPrefix)) continue;
    const auto keeper = read_keeper(folder, name);
    if (!keeper || is_this_process(*keeper)) continue;
    if (alive(folder, name, *keeper) == living) agents.push_back(*keeper);
  }
  return agents;
}

// Fails if this process has no descriptor left. Else every file would seem to be missing, and a
// living job would seem to be dead.
Status can_look_into(const os::Folder& folder) {
  if (os::Fd(::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0))) return {};
  return os::system_error(cat("cannot look into ", folder.path()), errno);
}

// Calls `look` with the runtime folder of each of this user's jobs, where os::runtime_directory()
// puts them. Returns a sentence for each thing in such a place that is no folder, or can not be
// opened.
template <class Look>
std::vector<std::string> for_each_folder(const Look& look) {
  std::vector<std::string> left_alone;
  for (const char* base : {"/dev/shm", "/tmp"}) {
    const auto mine = os::Folder::open(cat(base, "/holdfast-", ::geteuid()));
    if (!mine) left_alone.push_back(mine.error().what);
    if (!mine || !*mine) continue;
    if (const auto can = can_look_into(*mine); !can) left_alone.push_back(can.error().what);
    for (const auto& name : mine->names()) {
      const auto folder = mine->sub(name);
      const auto can = folder && *folder ? can_look_into(*folder) : Status();
      if (!folder || !can) left_alone.push_back(folder ? can.error().what : folder.error().what);
      if (folder && *folder && can) look(name, *folder);
    }
  }
  return left_alone;
}

// Device and inode identify the log folder. Its name does not, because a link may lead to it, and
// containers that share /dev/shm may each have a folder of that name.
void fill_in_log_folder(Keeper& keeper) {
  struct stat folder {};
  if (::stat(keeper.log_dir.c_str(), &folder) != 0) return;
  keeper.log_device = folder.st_dev;
  keeper.log_inode = folder.st_ino;
}

// Fails if another agent of this user has logs that those of `mine` would replace.
Status check_alone(const Keeper& mine) {
  if (mine.log_inode == 0) return {};
  Status alone;
  (void)for_each_folder([&](const std::string&, const os::Folder& folder) {
    if (!alone) return;
    for (const auto& other : other_agents(folder)) {
      const bool same = other.job == mine.job;
      if (same && other.node_rank != mine.node_rank) continue;
      if (other.log_device != mine.log_device || other.log_inode != mine.log_inode) continue;
      alone = Error{Blame::kUser,
                    cat("--log_dir is ", mine.log_dir, ", where ",
                        same ? cat("another msrun of this job with --node_rank=", mine.node_rank)
                             : cat("job ", other.job, ", which still runs,"),
                        " writes its logs (process ", other.pid, "): give this one another ",
                        same ? "--node_rank" : "--log_dir, or wait for the end of that job")};
    }
  });
  return alone;
}

// The paths that a process has mapped or open.
std::set<std::string> files_of(const std::string& process) {
  std::set<std::string> files;
  if (const auto maps = os::read_file(process + "/maps")) {
    for (std::size_t slash = maps->find('/'); slash != std::string::npos;) {
      const std::size_t end = std::min(maps->find('\n', slash), maps->size());
      files.insert(maps->substr(slash, end - slash));
      slash = maps->find('/', end);
    }
  }
  for (const auto& fd : os::names_in(process + "/fd")) {
    std::error_code error;
    files.insert(fs::read_symlink(cat(process, "/fd/", fd), error));
  }
  return files;
}

// Whether an agent of the job with this folder started the process or one of its ancestors. Only an
// agent gives out lifelines.
bool was_started_for(const std::string& directory, const std::string& process) {
  const auto environment = os::read_file(process + "/environ");
  if (!environment) return false;
  const std::string mark = cat("HOLDFAST_LIFELINE=", directory, "/lifeline-");
  return environment->starts_with(mark) ||
         environment->find(std::string(1, '\0') + mark) != std::string::npos;
}

// Whether the process is in our PID namespace. If not, its agent's number means another process
// here, or none.
bool has_our_numbers(pid_t pid) {
  const auto theirs = os::pid_namespace(pid);
  return theirs && theirs == os::pid_namespace();
}

void find_processes(std::vector<FoundJob>& jobs) {
  for (const pid_t pid : os::numbers_in("/proc")) {
    if (pid == ::getpid()) continue;
    const std::string process = cat("/proc/", pid);
    const auto files = files_of(process);
    for (auto& job : jobs) {
      const std::string beneath = job.directory + "/";
      const auto first = files.lower_bound(beneath);
      const bool uses = first != files.end() && first->starts_with(beneath);
      const bool started = !job.agent_alive && !job.starting &&
                           was_started_for(job.directory, process) && !os::is_exiting(pid);
      if (started && has_our_numbers(pid)) {
        job.orphans.push_back(pid);
        if (job.scheduler && job.scheduler->pid == pid) job.scheduler_alive = false;
      } else if (started || uses) {
        job.users.push_back(pid);
      }
    }
  }
}

// A lock: a process holds it while it records itself in a folder, and `holdfast clean` while it
// removes one. So of two agents that start at once, the later one sees the other, and no job loses
// its folder as it begins.
os::Fd turn_of(const std::string& directory) {
  const auto mine = os::Folder::open(os::folder_of(directory));
  return mine && *mine ? mine->wait_for_lock() : os::Fd();
}

// `folder` is the directory, or empty where there is none.
Result<bool> remove_whole(const os::Folder& folder, const std::string& directory) {
  if (folder) {
    if (const auto cleared = folder.clear(); !cleared) return cleared.error();
  }
  // Removing by name is safe here: rmdir() removes no link and nothing that has content. The user's
  // folder goes with its last job.
  if (::rmdir(directory.c_str()) != 0 && errno != ENOENT) {
    return os::system_error(cat("cannot remove ", directory), errno);
  }
  ::rmdir(os::folder_of(directory).c_str());
  return true;
}

FoundJob look_at(const std::string& name, const os::Folder& folder) {
  FoundJob job{.name = name, .directory = folder.path()};
  job.scheduler = read_keeper(folder, kSchedulerFile);
  job.scheduler_alive = job.scheduler && alive(folder, kSchedulerFile, *job.scheduler);
  job.solo_alive = is_solo_folder_in_use(folder);
  const auto agents = other_agents(folder);
  job.agent_alive = !agents.empty();
  if (job.agent_alive) job.agent = agents.front();
  job.master_alive = std::ranges::any_of(agents, [](const Keeper& k) { return k.port != 0; });
  job.dead_agents = other_agents(folder, false);
  std::ranges::sort(job.dead_agents, {}, &Keeper::start_time);
  job.starting = is_starting(folder);
  return job;
}

}  // namespace

Status write_scheduler_file(const std::string& directory, Keeper keeper) {
  const os::Fd turn = turn_of(directory);
  return write_keeper(directory, kSchedulerFile, std::move(keeper));
}

Status check_log_folder(Keeper keeper) {
  fill_in_log_folder(keeper);
  return check_alone(keeper);
}

Status write_agent_file(const std::string& directory, Keeper keeper) {
  const os::Fd turn = turn_of(directory);
  // `holdfast clean` may have removed the folder, as that of a dead job of this name, while this
  // job prepared.
  if (const auto made = os::runtime_directory(keeper.job); !made) return made.error();
  fill_in_log_folder(keeper);
  if (auto alone = check_alone(keeper); !alone) return alone;
  return write_keeper(directory, own_agent_file(), std::move(keeper));
}

void remove_unused(const std::string& directory) {
  if (::rmdir(directory.c_str()) == 0) ::rmdir(os::folder_of(directory).c_str());
}

Result<bool> remove_job_files(const std::string& directory) {
  const auto folder = os::open_runtime_directory(directory);
  if (!folder) return folder.error();
  if (*folder) {
    if (const auto removed = folder->remove(own_agent_file()); !removed) return removed.error();
    if (const auto can = can_look_into(*folder); !can) return can.error();
    if (!other_agents(*folder).empty()) return false;
  }
  return remove_whole(*folder, directory);
}

Result<bool> remove_if_still_dead(const FoundJob& job) {
  const auto folder = os::open_runtime_directory(job.directory);
  if (!folder) return folder.error();
  if (!*folder) return true;
  if (const auto can = can_look_into(*folder); !can) return can.error();
  const auto look_again = [&] {
    FoundJob now = look_at(job.name, *folder);
    // A scheduler that was just ended as an orphan may still hold the lock of its file.
    if (is_same_process(now.scheduler, job.scheduler)) now.scheduler_alive = false;
    return now;
  };
  // Searched before the lock is taken, because the search takes long and starting jobs need the
  // lock.
  std::vector<FoundJob> now = {look_again()};
  find_processes(now);
  if (now.front().alive() || !now.front().orphans.empty()) return false;
  const os::Fd turn = turn_of(job.directory);
  if (!turn) {
    return Error{Blame::kWorld,
                 cat("cannot lock ", os::folder_of(job.directory), ", so ", job.directory,
                     " is left alone: try again, and raise ", "`ulimit -n` if it is low")};
  }
  if (look_again().alive()) return false;
  return remove_whole(*folder, job.directory);
}

std::string read_left(const std::string& directory, const char* name) {
  const auto folder = os::open_runtime_directory(directory);
  const auto text = folder && *folder ? folder->read(name) : std::string();
  return text ? *text : "";
}

FoundJobs jobs_on_this_host() {
  FoundJobs found;
  found.left_alone = for_each_folder([&](const std::string& name, const os::Folder& folder) {
    found.jobs.push_back(look_at(name, folder));
  });
  if (!found.jobs.empty()) find_processes(found.jobs);
  return found;
}

std::vector<pid_t> end_orphans(const FoundJob& job) {
  std::vector<pid_t> left = job.orphans;
  for (const pid_t pid : left) {
    // By a pidfd, because the pid may name another process by now.
    const os::Fd pidfd = os::open_process(pid);
    if (pidfd && was_started_for(job.directory, cat("/proc/", pid))) {
      (void)os::send_signal(pidfd.get(), SIGKILL);
    }
  }
  const Instant until = io::Loop::now() + std::chrono::seconds(5);
  while (std::erase_if(left, os::is_exiting), !left.empty() && io::Loop::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return left;
}

}  // namespace holdfast::runtime
