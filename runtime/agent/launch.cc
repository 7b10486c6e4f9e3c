#include "runtime/agent/launch.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "base/number.h"
#include "base/text.h"
#include "collective/group.h"
#include "io/connection.h"
#include "io/etcd_journal.h"
#include "io/loop.h"
#include "os/files.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/agent/host_notes.h"
#include "runtime/agent/passwords.h"
#include "runtime/jobs/given_paths.h"
#include "runtime/jobs/job_files.h"
#include "runtime/jobs/leader_file.h"
#include "runtime/jobs/membership.h"
#include "runtime/jobs/snapshots.h"
#include "snapshot/folder.h"
#include "wording/snapshots.h"

namespace holdfast::runtime {

static_assert(config::kMostWorkers == collective::Group::kMaxRanks);

namespace {

// The options of msrun that `holdfast run` spells otherwise.
constexpr std::pair<std::string_view, std::string_view> kAsTorchrun[] = {
    {"--worker_num", "--nproc-per-node"}, {"--master_addr", "the address in --rdzv-endpoint"},
    {"--master_port", "--sched-port"},    {"--max_restarts", "--max-restarts"},
    {"--log_dir", "--log-dir"},           {"--node_rank", "--node-rank"},
};

std::string random_name() {
  return hex(os::random_bits()) + hex(os::random_bits());
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

// Finds the dead agent whose part of `job` this agent resumes (--continue). Empty: of any job.
Result<Keeper> dead_agent(const AgentOptions& options, const std::string& job) {
  std::vector<Keeper> found;
  const FoundJobs here = jobs_on_this_host();
  const FoundJob* its = nullptr;
  for (const auto& each : here.jobs) {
    if (!job.empty() && each.name != job) continue;
    std::optional<Keeper> newest;
    for (const auto& agent : each.dead_agents) {
      if (agent.node_rank == options.node_rank && agent.run != 0) newest = agent;
    }
    if (!newest) continue;
    if (each.agent_alive && each.agent->node_rank == options.node_rank) continue;
    its = &each;
    found.push_back(*newest);
  }
  const std::string asked = job.empty() ? "a job" : cat("job ", job);
  if (found.empty()) {
    return Error{
        Blame::kUser,
        cat("--continue: nothing is left on this host of ", asked, " whose launcher has died",
            options.node_rank == 0
                ? std::string()
                : cat(" (", spelled(options, "--node_rank"), "=", options.node_rank, ")"),
            ": leave --continue out to begin anew")};
  }
  if (found.size() > 1) {
    std::string names;
    for (const auto& each : found) names += cat(names.empty() ? "" : ", ", each.job);
    return Error{Blame::kUser, cat("--continue: several jobs are left on this host whose launcher "
                                   "has died: set HOLDFAST_JOB to one of ",
                                   names)};
  }
  const Keeper& left = found.front();
  if (const auto change = wording::change_of_program(left.program, program_of(options));
      !change.empty()) {
    return Error{Blame::kUser, cat("--continue: job ", left.job, " runs another program, or with ",
                                   "other arguments (", change, "): it has to be the command that ",
                                   "started it, and --continue")};
  }
  if (left.memory != os::shared_memory_name()) {
    return Error{Blame::kUser,
                 cat("--continue: job ", left.job, " ran in another container, or before this ",
                     "machine was started anew, and its state can not be taken up from here")};
  }
  if (!its->agent_alive) (void)end_orphans(*its);
  return left;
}

// `left`: the dead agent whose part of the job is resumed (--continue).
std::vector<std::string> environment_of(const AgentOptions& options,
                                        const std::optional<Keeper>& left,
                                        std::vector<std::string>& remarks) {
  std::vector<std::string> environment = options.environment;
  // An outer launcher may have left these.
  for (const auto name : config::given_by_msrun()) unset(environment, name);
  set(environment, "MS_SCHED_HOST", options.master_addr);
  set(environment, "MS_SCHED_PORT", cat(options.master_port));
  set(environment, "MS_WORKER_NUM", cat(options.worker_num));
  if (options.server_num > 0) set(environment, "MS_SERVER_NUM", cat(options.server_num));
  set(environment, "HOLDFAST_RUN", cat(left ? left->run : os::random_bits() | 1));
  if (left) set(environment, "HOLDFAST_JOB", left->job);
  // Only an agent that is alone may draw a random name: other agents could not learn it.
  if (is_alone(options) && value_of(environment, "HOLDFAST_JOB").empty()) {
    set(environment, "HOLDFAST_JOB", random_name());
  }
  if (value_of(environment, "OMP_NUM_THREADS").empty()) {
    const int threads = std::max(1, usable_cores() / std::max(1, options.local_worker_num));
    set(environment, "OMP_NUM_THREADS", cat(threads));
    remarks.push_back(cat("OMP_NUM_THREADS is not set; every process gets ", threads,
                          " (usable cores / workers)"));
  }
  return environment;
}

Result<config::Settings> settings_of(const std::vector<std::string>& environment) {
  std::vector<const char*> entries;
  for (const auto& entry : environment) entries.push_back(entry.c_str());
  entries.push_back(nullptr);
  return config::from_environment(entries.data());
}

// Calls `check` until it succeeds, for 2 s at most. A job whose agent was killed a moment ago still
// holds its port and its name, and a script may start it again at once. The terminal shows `waits`.
template <class Check>
Status retry(const AgentOptions& options, const std::string& waits, const Check& check) {
  const Instant end = io::Loop::now() + std::chrono::seconds(2);
  Status status = check();
  if (!status) options.terminal->say(waits);
  while (!status && io::Loop::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    status = check();
  }
  return status;
}

// Whether this host can listen at `address` and `port`; 0: at any port.
Status listens(const std::string& address, std::uint16_t port) {
  io::Loop loop;
  const auto listener = io::listen(loop, address, port);
  return listener ? Status{} : Status{listener.error()};
}

Status probe_port(const AgentOptions& options, std::uint16_t port) {
  return listens(options.master_addr, port);
}

Status look_at_other_jobs(const std::string& job, std::vector<std::string>& remarks) {
  std::size_t dead = 0;
  for (const auto& found : jobs_on_this_host().jobs) {
    if (!found.alive() && found.name != job) ++dead;
    // Another agent of the same job, without a scheduler, may have come first.
    if (found.name != job || !(found.master_alive || found.scheduler_alive)) continue;
    return Error{Blame::kUser,
                 cat("a job named '", job, "' already runs on this host: give this one ",
                     "another HOLDFAST_JOB, or none")};
  }
  if (dead != 0) {
    remarks.push_back(cat("folders of dead jobs take up memory of this host: ", dead,
                          "; `holdfast clean` removes them"));
  }
  return {};
}

// A job on several hosts needs a token from its user: one drawn on this host would be unknown to
// the others.
Status check_token(const AgentOptions& options, const config::Settings& settings) {
  if (!settings.token_file.empty()) return check_token_file(settings);
  const std::string& address = options.master_addr;
  if (is_alone(options) || address == "localhost" || os::is_loopback(address)) return {};
  return Error{
      Blame::kUser,
      "HOLDFAST_TOKEN_FILE is not set: by it the hosts of a job know one another. Make a "
      "file on one host, `(umask 077; openssl rand -hex 32 > FILE)`, copy it to all others "
      "with its mode, and set HOLDFAST_TOKEN_FILE to it on each. (A job of several msruns on one "
      "host needs none if its --master_addr is 127.0.0.1)"};
}

// An address that is not this host's fails with every port, so it is refused without waiting.
Status wait_for_port(const AgentOptions& options) {
  const Status first = probe_port(options, options.master_port);
  if (first) return first;
  if (const Status any = probe_port(options, 0); !any) {
    if (any.error().blame != Blame::kUser) return first;
    return Error{Blame::kUser, cat(spelled(options, "--master_addr"),
                                   " has to be an address of this host: ", first.error().what)};
  }
  const auto free = retry(
      options, cat("port ", options.master_port, " can not be had just now; tries again for 2 s"),
      [&] { return probe_port(options, options.master_port); });
  if (free) return free;
  return Error{Blame::kUser, cat(free.error().what, "; the scheduler needs a free port of this ",
                                 "host: choose another with ", spelled(options, "--master_port"),
                                 options.as_torchrun ? "" : " (or --master_addr)")};
}

// What made the snapshot and is another one now. What a rank is of, it says itself.
void compare(const Resumed& resumed, const AgentOptions& options, Launch& launch) {
  if (resumed.snapshots.empty()) return;
  const std::string step = cat("the snapshot of step ", resumed.snapshots.front().version);
  const auto change = wording::change_of_program(resumed.program, program_of(options));
  if (!change.empty()) {
    launch.remarks.push_back(cat(step, " was made by another command: ", change,
                                 ". What State keeps, as a learning rate, is the snapshot's"));
  }
  if (!resumed.release.empty() && resumed.release != HOLDFAST_VERSION) {
    launch.remarks.push_back(cat(step, " was made by Holdfast ", printable(resumed.release),
                                 ", and this is ", HOLDFAST_VERSION));
  }
}

// Says with what the job begins. Error: that can not be.
Status look_at_snapshots(const AgentOptions& options, Launch& launch) {
  const config::Settings& settings = launch.settings;
  const auto resumed = resume_by(settings);
  if (!resumed) return resumed.error();
  for (const auto& remark : resumed->remarks) launch.remarks.push_back(remark);
  compare(*resumed, options, launch);
  if (settings.resume == "auto") {
    for (const auto& one : resumed->snapshots) launch.ancestors.push_back(one.name);
    HostNotes::remove_old(settings.snapshot);
  }
  if (settings.snapshot.empty() || !settings.resume.empty()) return {};
  const auto found = snapshot::find(settings.snapshot);
  if (found && !found->whole.empty()) {
    launch.remarks.push_back(cat("the job begins anew, though ", settings.snapshot,
                                 " has a snapshot of step ", found->whole.front().manifest.version,
                                 ": --resume auto would go on from it"));
  }
  return {};
}

// The head of the job's journal in etcd; nullopt: etcd has no journal of this job.
Result<std::optional<io::EtcdEntry>> journal_head(io::Etcd& etcd, const std::string& job) {
  const auto head =
      etcd.transact({{}, {{.kind = io::EtcdOperation::Kind::kRange, .key = io::etcd_head(job)}}},
                    io::Loop::now() + std::chrono::seconds(5));
  if (!head) return head.error();
  const auto& entries = head->ranges.front().entries;
  return entries.empty() ? std::nullopt : std::optional(entries.front());
}

// For --continue: takes the run id from etcd. Since the launcher died, another host's scheduler may
// have begun a new run of the job, or ended the job (an error).
Status continue_in_etcd(io::Etcd& etcd, Launch& launch) {
  const std::string& job = launch.settings.job;
  const auto head = journal_head(etcd, job);
  if (!head) return head.error();
  const auto run = *head ? io::run_in_head(**head) : std::nullopt;
  if (!run) {
    return Error{Blame::kUser,
                 cat("--continue: etcd has no journal of job ", job, " (any more): it has ended ",
                     "meanwhile. `holdfast clean` removes what it has left on this host")};
  }
  launch.settings.run = *run;
  set(launch.environment, "HOLDFAST_RUN", cat(*run));
  return {};
}

// Without etcd, warns about the loss of the scheduler's host. With etcd, each host has a scheduler;
// decides whether this host's one stands by. The first host's does so too if `master_addr` is no
// longer its address: the agent was started again on another host.
Status check_etcd(const AgentOptions& options, Launch& launch) {
  const auto& settings = launch.settings;
  const std::string& address = options.master_addr;
  if (settings.etcd.empty()) {
    const bool has_others =
        !is_alone(options) && address != "localhost" && !os::is_loopback(address);
    if (options.runs_scheduler && has_others) {
      launch.remarks.push_back(
          "HOLDFAST_ETCD is not set, so the journal is a file of this host, which runs the "
          "scheduler: the loss of this host ends the job, that of another does not");
    }
    return {};
  }
  auto etcd = io::Etcd::open(etcd_options(settings));
  if (!etcd) return etcd.error();
  if (options.continues) {
    if (const auto goes_on = continue_in_etcd(*etcd, launch); !goes_on) return goes_on;
  }
  if (is_alone(options)) return {};
  launch.stands_by = !options.runs_scheduler;
  const auto here = options.runs_scheduler ? listens(address, 0) : Status{};
  if (!here) {
    const auto head = journal_head(*etcd, settings.job);
    if (!head) return head.error();
    if (!*head) return {};  // wait_for_port() says what is wrong.
    launch.runs_scheduler = false;
    launch.stands_by = true;
    launch.remarks.push_back(cat(here.error().what, ", so this host takes part in a job that runs ",
                                 "already, whose scheduler etcd knows"));
  }
  return {};
}

}  // namespace

bool is_alone(const AgentOptions& options) {
  return options.local_worker_num == options.worker_num && !options.several && !options.spare_host;
}

std::string program_of(const AgentOptions& options) {
  std::string program;
  for (const auto& word : options.program) {
    program = word.starts_with("holdfast: ") ? std::string() : program + word + '\n';
  }
  return program;
}

std::string spelled(const AgentOptions& options, std::string_view option) {
  for (const auto& [ours, torchruns] : kAsTorchrun) {
    if (!options.as_torchrun || option != ours) continue;
    const bool met = ours == "--master_port" && !is_alone(options);
    return met ? "the port in --rdzv-endpoint" : std::string(torchruns);
  }
  return std::string(option);
}

Result<Launch> prepare(const AgentOptions& options, Words argv) {
  Launch launch{.argv = std::move(argv)};
  std::optional<Keeper> left;
  if (options.continues) {
    std::string job = value_of(options.environment, "HOLDFAST_JOB");
    if (job.empty() && !is_alone(options)) job = cat("port-", options.master_port);
    auto found = dead_agent(options, job);
    if (!found) return found.error();
    left = *std::move(found);
    launch.remarks.push_back(
        cat("goes on with job ", left->job, ", whose launcher (process ", left->pid, ") has died"));
  }
  launch.environment = environment_of(options, left, launch.remarks);
  auto settings = settings_of(launch.environment);
  if (!settings) return settings.error();
  launch.settings = std::move(*settings);
  const auto known = check_token(options, launch.settings);
  if (!known) return known.error();
  launch.runs_scheduler = options.runs_scheduler;
  if (const auto good = check_etcd(options, launch); !good) return good.error();
  if (launch.runs_scheduler) {
    if (const auto free = wait_for_port(options); !free) return free.error();
  }
  const std::string& job = launch.settings.job;
  if (launch.runs_scheduler) {
    const auto unused =
        retry(options, cat("job ", job, " still runs on this host; waits 2 s for its end"),
              [&] { return look_at_other_jobs(job, launch.remarks); });
    if (!unused) return unused.error();
  }
  auto passwords = Passwords::take(launch.settings, launch.runs_scheduler || launch.stands_by);
  if (!passwords) return passwords.error();
  launch.passwords = *std::move(passwords);
  std::error_code error;
  launch.log_directory = std::filesystem::absolute(options.log_dir, error).lexically_normal();
  if (launch.log_directory.size() > 1 && launch.log_directory.ends_with('/')) {
    launch.log_directory.pop_back();
  }
  for (const auto& usable :
       {check_folder(spelled(options, "--log_dir"), launch.log_directory, 0755),
        check_folder("HOLDFAST_TRACE", launch.settings.trace),
        check_folder("MS_RECOVERY_PATH", launch.settings.recovery_path),
        check_folder("--snapshot", launch.settings.snapshot)}) {
    if (!usable) return usable.error();
  }
  if (launch.runs_scheduler && !options.continues) {
    if (const auto fits = look_at_snapshots(options, launch); !fits) return fits.error();
  }
  const auto alone = retry(
      options,
      cat("a job still writes its logs in ", launch.log_directory, "; waits 2 s for its end"), [&] {
        return check_log_folder(
            {.job = job, .log_dir = launch.log_directory, .node_rank = options.node_rank});
      });
  if (!alone) return alone.error();
  auto directory = os::runtime_directory(job);
  if (!directory) return directory.error();
  launch.job_directory = std::move(*directory);
  if (!launch.job_directory.starts_with("/dev/shm/")) {
    launch.remarks.push_back(
        cat("/dev/shm can not be written to, so the job's memory is in files in ",
            launch.job_directory, ": slower, where that is a disk"));
  }
  return launch;
}

void forget_reports(const Launch& launch) {
  for (const char* name : {kReports, kLastStatus, kPicture}) {
    ::unlink(cat(launch.log_directory, '/', name).c_str());
  }
}

void keep_reports(const Launch& launch, Terminal& terminal) {
  for (const char* name : {kReports, kLastStatus}) {
    const std::string kept = cat(launch.log_directory, '/', name);
    // An agent that stood by may share the log folder with the agent whose scheduler served, so it
    // keeps what is there.
    if (launch.runs_scheduler) ::unlink(kept.c_str());
    const std::string left = read_left(launch.job_directory, name);
    if (left.empty()) continue;
    if (const auto written = os::write_file_atomically(kept, left, 0644); !written) {
      terminal.say(written.error().what);
    }
  }
}

}  // namespace holdfast::runtime
