#include "runtime/agent/children.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/idle.h"
#include "os/lifeline.h"
#include "os/slice.h"
#include "runtime/jobs/agent_watch.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

constexpr int kSpareFd = 3;  // A spare's end of its pipe.
constexpr std::uint64_t kLongLog = std::uint64_t{1} << 20;
constexpr Duration kGroupPatience = std::chrono::milliseconds(100);

// Whether the process is stopped and, if the last look found it stopped too, did not run in
// between.
bool is_held(pid_t pid, std::optional<std::uint64_t>& last) {
  const auto now = pid > 0 ? os::stopped_at(pid) : std::nullopt;
  const auto before = std::exchange(last, now);
  return now && (!before || *before == *now);
}

// The process that holds the lifeline, if it is in the child's group; 0 if there is none. The group
// is checked because the number may mean another process here: if the holder is in another PID
// namespace, or if it ended some time ago and its wrapper lives on.
pid_t trainer_of(const std::string& lifeline, pid_t group) {
  const pid_t holder = os::lifeline_holder(lifeline);
  return holder > 0 && ::getpgid(holder) == group ? holder : 0;
}

std::uint64_t size_of(const std::string& log) {
  struct stat about {};
  return ::stat(log.c_str(), &about) == 0 ? static_cast<std::uint64_t>(about.st_size) : 0;
}

const char* role_name(const agent::Spawn& what) {
  if (what.role == agent::Role::kScheduler) return "MS_SCHED";
  return what.serves ? "MS_PSERVER" : "MS_WORKER";
}

std::string in_words(const agent::Predecessor& predecessor) {
  if (!predecessor.there_was) return {};
  return cat(wording::in_words(predecessor.ending),
             predecessor.error.empty() ? "" : cat(" (", predecessor.error, ")"));
}

std::string log_name(const std::string& node_id, bool serves) {
  return cat(serves ? "server_" : "worker_", node_id, ".log");
}

}  // namespace

Children::Children(io::Loop& loop, ChildrenOptions options,
                   std::function<void(agent::Died)> on_died,
                   std::function<void(agent::SpareReady)> on_ready)
    : loop_(loop),
      options_(std::move(options)),
      on_died_(std::move(on_died)),
      idle_spares_(os::may_undo_idle()),
      folders_(options_.job_directory, options_.places),
      starting_(loop, options_.spare_share, idle_spares_,
                [tell = std::move(on_ready)](agent::Process process) { tell({process}); }) {}

Children::~Children() {
  for (auto& [process, running] : running_) {
    (void)os::signal_group(running.child.pid, SIGKILL);
    (void)os::wait_for(running.child.pidfd.get());
    running.watcher->cancel = true;
    retired_.push_back(std::move(running.watcher));
  }
  for (auto& watcher : retired_) watcher->thread.join();
}

std::string Children::new_log(const agent::Spawn& what) {
  std::string name = log_name(what.node_id, what.serves);
  if (what.role == agent::Role::kScheduler) {
    name = options_.stands_by ? cat("scheduler_", options_.mark, "stands_by.log") : "scheduler.log";
  }
  if (what.role == agent::Role::kSpare) name = cat("spare_", options_.mark, spares_++, ".log");
  if (what.role == agent::Role::kRehearsal) return rehearsal_log_of(what.node_id);
  std::string path = cat(options_.logs->path(), '/', name);
  // The first process of a place begins a new log. Later ones append to it, also those on another
  // host, which may share the folder (takes_over).
  const bool is_first = what.attempt <= 1 && !what.takes_over;
  if (is_first && !options_.goes_on) ::unlink(path.c_str());
  if (what.role != agent::Role::kSpare) logs_[what.node_id] = path;
  return path;
}

// One log for all rehearsals of a rank in this job, begun anew when it has become long.
std::string Children::rehearsal_log_of(const std::string& node_id) {
  std::string path = cat(options_.logs->path(), '/', agent::rehearsal_log(node_id));
  const bool is_first = rehearsed_.insert(node_id).second && !options_.goes_on;
  if (is_first || size_of(path) > kLongLog) ::unlink(path.c_str());
  return path;
}

Status Children::spawn(const agent::Spawn& what) {
  Running running;
  running.log = new_log(what);
  running.lifeline = cat(options_.job_directory, "/lifeline-", ::getpid(), '-', what.process);
  if (const auto made = os::prepare_lifeline(running.lifeline); !made) return made.error();
  os::SpawnOptions options{.argv = what.serves ? options_.server : options_.argv,
                           .environment = options_.environment,
                           .output = options_.logs->output_for(running.log)};
  running.log_begin = size_of(options.output);
  auto& environment = options.environment;
  environment.push_back(cat("MS_ROLE=", role_name(what)));
  environment.push_back(cat("HOLDFAST_INCARNATION=", what.incarnation));
  environment.push_back(cat("HOLDFAST_ATTEMPT=", what.attempt));
  environment.push_back(cat("HOLDFAST_LIFELINE=", running.lifeline));
  environment.push_back(cat("HOLDFAST_AGENT=", AgentWatch::words_for_this_process()));
  options_.launcher->tell(environment, {options.output, in_words(what.predecessor)});
  if (what.role == agent::Role::kScheduler && options_.stands_by) {
    environment.push_back("HOLDFAST_STANDBY=1");
  }
  if (what.role != agent::Role::kScheduler && !what.node_id.empty()) {
    environment.push_back(cat("MS_NODE_ID=", what.node_id));
  }
  os::Fd reading;
  if (what.role == agent::Role::kSpare) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return os::system_error("cannot make a pipe", errno);
    reading.reset(ends[0]);
    running.pipe.reset(ends[1]);
    running.idle = idle_spares_;
    options.inherit.push_back({reading.get(), kSpareFd});
    options.idle = starting_.begins_idle();
    environment.push_back(cat("HOLDFAST_SPARE_FD=", kSpareFd));
    if (what.prepares) environment.push_back("HOLDFAST_PREPARE=1");
  }
  if (what.role == agent::Role::kRehearsal) {
    if (const auto made = folders_.make(what.node_id, what.attempt == 2); !made)
      return made.error();
    running.rehearses = what.node_id;
    // Unlike a spare, a rehearsal never needs ordinary priority again.
    options.idle = starting_.begins_idle() || !idle_spares_;
    environment.push_back(cat("HOLDFAST_REHEARSE=", what.node_id));
  }
  auto child = os::spawn(options);
  if (!child) return child.error();
  // os::spawn() makes only the child idle. A wrapper may have started its program before that.
  if (options.idle) os::make_group_idle(child->pid);
  if (what.role == agent::Role::kSpare) starting_.add(what.process, child->pid, running.lifeline);
  if (what.role == agent::Role::kRehearsal) starting_.add(what.process, child->pid, "");
  running.child = std::move(*child);
  running.board = os::lifeline_board(running.lifeline);
  running_[what.process] = std::move(running);
  try {
    watch(what.process);
  } catch (const std::system_error& error) {
    // The system has no thread or no descriptor left for this process.
    Running& unwatched = running_.at(what.process);
    (void)os::signal_group(unwatched.child.pid, SIGKILL);
    (void)os::wait_for(unwatched.child.pidfd.get());
    if (unwatched.watcher->thread.joinable()) retire(std::move(unwatched.watcher));
    ::unlink(unwatched.lifeline.c_str());
    starting_.forget(what.process);
    running_.erase(what.process);
    return os::no_task(cat("cannot watch ", options_.argv.front()), error.code().value());
  }
  return {};
}

void Children::watch(agent::Process process) {
  Running& running = running_.at(process);
  running.watcher = std::make_unique<Watcher>();
  running.watcher->thread = std::thread([this, process, watcher = running.watcher.get(),
                                         pid = running.child.pid, path = running.lifeline] {
    const auto ending = os::wait_for_death(path, watcher->cancel);
    const Instant when = io::Loop::now();
    // If the process let go of its lifeline, or never held it, its pidfd tells of its end.
    const bool died = ending && *ending == os::Ending::kDied;
    // The dead process's other threads may still wait for a core to exit on. The watcher does not
    // wait for them: the other ranks can stop meanwhile, and a successor checks that they are gone
    // (P23). A wrapper may go on with something else, so its exit is awaited. A stand-in can not.
    const pid_t trainer = trainer_of(path, pid);
    const bool doomed = trainer != 0 && (trainer == pid || options_.launcher->stands_in());
    if (died && (doomed || os::wait_until_exiting(pid, watcher->cancel))) {
      loop_.post([this, process, when] { lifeline_ended(process, when); });
      if (doomed && idle_spares_) os::make_dead_give_way(trainer, watcher->cancel);
    }
    watcher->done = true;
  });
  loop_.on_exit(running.child.pidfd.get(),
                [this, process](const os::Exit& exit) { exited(process, exit); });
}

// Joins the threads that have ended. A cancelled one may take 200 ms.
void Children::retire(std::unique_ptr<Watcher> watcher) {
  watcher->cancel = true;
  retired_.push_back(std::move(watcher));
  std::erase_if(retired_, [](const auto& old) {
    if (!old->done) return false;
    old->thread.join();
    return true;
  });
}

void Children::lifeline_ended(agent::Process process, Instant when) {
  const auto found = running_.find(process);
  if (found == running_.end()) return;  // exited() came first.
  // Kills the whole group: what the process forked, and the process itself, which may have become
  // another program (exec). It is not reaped yet, so its pid still names it. A stand-in must live
  // on, to report how the trainer ended: only the trainer is killed, and exited() kills the group.
  const pid_t group = found->second.child.pid;
  if (!options_.launcher->stands_in()) {
    (void)os::signal_group(group, SIGKILL);
  } else if (const pid_t trainer = trainer_of(found->second.lifeline, group); trainer != 0) {
    ::kill(trainer, SIGKILL);
  }
  on_died_({.process = process,
            .ending = {},
            .detected_ns = static_cast<std::uint64_t>(when.count()),
            .job_ended = os::lifeline_end(found->second.lifeline)});
}

void Children::exited(agent::Process process, const os::Exit& exit) {
  const auto found = running_.find(process);
  HF_ASSERT(found != running_.end());
  const Instant when = io::Loop::now();
  const pid_t group = found->second.child.pid;
  const pid_t trainer = trainer_of(found->second.lifeline, group);
  (void)os::signal_group(group, SIGKILL);  // Kills what the process forked.
  // The end is reported only once the process under a wrapper has ended too.
  if (trainer != 0) (void)os::wait_until_exiting(trainer, false, kGroupPatience);
  retire(std::move(found->second.watcher));
  agent::Died died{.process = process,
                   .ending = exit.signal != 0
                                 ? wire::Ending{wire::Ending::Kind::kSignalled, exit.signal}
                                 : wire::Ending{wire::Ending::Kind::kExited, exit.code},
                   .detected_ns = static_cast<std::uint64_t>(when.count()),
                   .version = os::lifeline_version(found->second.lifeline),
                   .job_ended = os::lifeline_end(found->second.lifeline)};
  if (exit.signal == 0 && exit.code != 0) {
    died.error = options_.launcher->reason(os::end_of(found->second.log, found->second.log_begin));
    died.is_final = options_.launcher->is_final(died.error);
  }
  if (!found->second.rehearses.empty()) died.verdict = folders_.take(found->second.rehearses);
  ::unlink(found->second.lifeline.c_str());
  starting_.forget(process);
  running_.erase(found);
  on_died_(std::move(died));
}

void Children::promote(const agent::Promote& what) {
  const auto found = running_.find(what.process);
  if (found == running_.end()) return;
  Running& running = found->second;
  const pid_t group = running.child.pid;
  const pid_t trainer = trainer_of(running.lifeline, group);
  starting_.forget(what.process);
  if (trainer != 0) {  // The other ranks wait for this process.
    if (running.idle) os::make_process_ordinary(trainer);
    // Other trainers compute on the same cores. So all threads of this process get the short slice:
    // the agent does not know which of them waits. Worker takes it back when training goes on.
    os::take_short_slice_of_all(trainer);
  }
  const std::string place =
      cat(what.node_id, ' ', what.attempt, ' ', in_words(what.predecessor), '\n');
  // The line fits into the pipe, so the write fails only if the spare has died. on_died will report
  // that.
  (void)!::write(running.pipe.get(), place.data(), place.size());
  running.pipe.reset();
  if (std::exchange(running.idle, false)) os::make_group_ordinary(group);
  std::string former = logs_[what.node_id];  // Empty: the place was another host's.
  if (former.empty()) former = cat(options_.logs->path(), '/', log_name(what.node_id, false));
  const os::Fd log(::open(former.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  const std::string line =
      cat("msrun: a spare has taken this place; its output goes on in ", running.log, '\n');
  if (log) (void)!::write(log.get(), line.data(), line.size());
  logs_[what.node_id] = running.log;
}

void Children::signal_all(int signal) {
  for (const auto& [process, running] : running_) {
    if (running.idle) os::make_group_ordinary(running.child.pid);
    (void)os::signal_group(running.child.pid, signal);
  }
}

void Children::tell(agent::Process process, int signal) {
  const auto found = running_.find(process);
  if (found == running_.end()) return;
  const pid_t group = found->second.child.pid;
  const pid_t trainer = trainer_of(found->second.lifeline, group);
  ::kill(trainer != 0 ? trainer : group, signal);
}

void Children::kill(agent::Process process, int signal) {
  const auto found = running_.find(process);
  if (found == running_.end()) return;
  Running& running = found->second;
  starting_.forget(process);
  const bool rehearses = !running.rehearses.empty();
  const bool may_be_idle = running.idle || (rehearses && idle_spares_);
  if (may_be_idle) os::make_group_ordinary(running.child.pid);
  (void)os::signal_group(running.child.pid, signal);
  // A rehearsal mostly has to end for a recovery. So it gives way at first, but after kDeadGiveWay
  // no more, because the recovery needs its memory, too.
  if (!rehearses || !may_be_idle) return;
  os::make_leaders_idle(running.child.pid);
  loop_.after(os::kDeadGiveWay, [this, process] {
    if (const pid_t group = pid_of(process); group != 0) os::make_group_ordinary(group);
  });
}

std::string Children::log_of(const std::string& node_id) const {
  const auto found = logs_.find(node_id);
  return found == logs_.end() ? std::string() : found->second;
}

std::set<agent::Process> Children::stopped() {
  std::set<agent::Process> found;
  for (auto& [process, running] : running_) {
    const pid_t group = running.child.pid;
    if (running.trainer == 0 || ::getpgid(running.trainer) != group) {
      running.trainer = trainer_of(running.lifeline, group);
      running.board = os::lifeline_board(running.lifeline);  // It may be a new file.
      running.trainer_stopped_at.reset();
    }
    // A stopped wrapper counts, because it would not end with its trainer.
    const bool child = is_held(running.child.pid, running.child_stopped_at);
    const bool trainer = is_held(running.trainer, running.trainer_stopped_at);
    if (child || trainer) found.insert(process);
  }
  return found;
}

std::map<agent::Process, Whereabouts> Children::whereabouts() {
  std::map<agent::Process, Whereabouts> all;
  for (const auto& [process, running] : running_) {
    const bool runs = running.trainer != 0 && os::state_of(running.trainer) != 't';
    if (runs) all[process] = os::whereabouts_on(*running.board);
  }
  return all;
}

Inspector::Subject Children::subject(agent::Process process, const std::string& node_id) const {
  const auto found = running_.find(process);
  if (found == running_.end()) return {};
  const Running& running = found->second;
  return {.process = process,
          .pid = running.trainer,
          .environment = options_.environment,
          .output = cat(options_.job_directory, "/stack-", ::getpid(), '-', process),
          .log = cat(options_.logs->path(), "/stack_", node_id, ".log")};
}

pid_t Children::pid_of(agent::Process process) const {
  const auto found = running_.find(process);
  return found == running_.end() ? 0 : found->second.child.pid;
}

}  // namespace holdfast::runtime
