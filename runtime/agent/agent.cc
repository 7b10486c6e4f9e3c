#include "runtime/agent/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <variant>

#include "base/number.h"
#include "base/text.h"
#include "core/agent/machine.h"
#include "io/loop.h"
#include "io/trace.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "os/slice.h"
#include "runtime/agent/children.h"
#include "runtime/agent/launch.h"
#include "runtime/agent/log_folder.h"
#include "runtime/agent/saving.h"
#include "runtime/agent/snapshot_writer.h"
#include "runtime/jobs/addresses_file.h"
#include "runtime/jobs/given_paths.h"
#include "runtime/jobs/job_files.h"
#include "runtime/jobs/scheduler_link.h"
#include "runtime/jobs/tls_choice.h"
#include "wording/reasons.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kGrace = 5s;  // For processes that end by themselves.
// Between heartbeats, unless the scheduler is at a loopback address.
constexpr Duration kBeat = 100ms;

// Carries out what the agent machine decides, and tells it what happens.
class Agent {
 public:
  Agent(const AgentOptions& options, const Launch& launch, std::function<void()> on_started);
  int run();
  [[nodiscard]] bool may_be_unsaved() const { return exit_.may_be_unsaved; }
  [[nodiscard]] std::vector<Rank> ranks() const;

 private:
  void step(agent::Event event);
  void carry_out(const agent::Spawn& action);
  void carry_out(const agent::Promote& action);
  void carry_out(const agent::Send& action) { link_.send(action.message); }
  void carry_out(const agent::Kill& action) {
    children_.kill(action.process, action.gently ? gentle_ : SIGKILL);
  }
  void carry_out(const agent::WantGrace&) {
    const bool asked = machine_.state() == agent::State::kEnding;
    loop_.after(asked ? grace_of(launch_.settings) : kGrace, [this] { step(agent::GraceOver{}); });
  }
  void carry_out(const agent::WantPause& action);
  void carry_out(const agent::LeaveAddresses& action) {
    const auto left = write_addresses_file(launch_.job_directory, action.addresses);
    // Without the file, the workers ask the scheduler.
    if (!left) options_.terminal->say(left.error().what);
  }
  void carry_out(const agent::Say& action) {
    const auto kind = action.reason.kind;
    const bool warns = kind == wire::Reason::Kind::kRehearsalDiffers ||
                       kind == wire::Reason::Kind::kRehearsalWrong;
    options_.terminal->say((warns ? "WARNING: " : "") + wording::in_words(action.reason));
  }
  void carry_out(const agent::Inspect& action);
  void carry_out(const agent::DoSnapshot& action) { snapshots_.begin(action.order); }
  void carry_out(const agent::Log& action);
  void carry_out(const agent::Stay& action);
  void carry_out(const agent::EndHost& action);
  void carry_out(const agent::Exit& action);
  void show_end() const;
  void signalled(int signal);
  void look();
  void beat();
  void received(wire::Message message);

  const AgentOptions& options_;
  const Launch& launch_;
  std::function<void()> on_started_;
  io::Loop loop_;
  agent::Machine machine_;
  LogFolder logs_;
  Children children_;
  Inspector inspector_;
  SnapshotWriter snapshots_;
  io::Trace trace_;
  SchedulerLink link_{
      loop_,
      launch_.settings,
      wire::PeerKind::kAgent,
      {.on_up = [this] { step(agent::LinkUp{!os::is_loopback(link_.local_address())}); },
       .on_message = [this](wire::Message m) { received(std::move(m)); },
       .on_down = [this] { step(agent::LinkDown{}); },
       .on_out_of_reach = [this](const Error& why) { step(agent::OutOfReach{why.what}); }}};
  Instant looked_ = io::Loop::now();
  std::deque<agent::Event> events_;
  bool stepping_ = false;
  int gentle_ = SIGTERM;  // What asks a process to end.
  agent::Exit exit_;
};

const char* name(agent::Role role) {
  switch (role) {
    case agent::Role::kScheduler:
      return "scheduler";
    case agent::Role::kWorker:
      return "worker";
    case agent::Role::kSpare:
      return "spare";
    case agent::Role::kRehearsal:
      return "rehearsal";
  }
  return "?";
}

// The exit code as a shell shows it: 0..255, or 128 + signal; -1: not known yet.
std::int32_t shell_code(const wire::Ending& ending) {
  if (ending.kind == wire::Ending::Kind::kUnknown) return -1;
  return ending.kind == wire::Ending::Kind::kSignalled ? 128 + ending.code : ending.code;
}

// Counts the scheduler's reports, which are complete once the scheduler has ended.
std::size_t recoveries_of(const Launch& launch) {
  const std::string reports = read_left(launch.job_directory, kReports);
  return static_cast<std::size_t>(std::count(reports.begin(), reports.end(), '\n'));
}

// A prefix for the logs that every agent of the job writes: the agents may share a log folder.
std::string mark(const AgentOptions& options) {
  return options.node_rank == 0 ? "" : cat(options.node_rank, '_');
}

agent::Options machine_options(const AgentOptions& options, const Launch& launch) {
  agent::Options made{
      .job = launch.settings.job,
      .agent_id = cat(os::host_name(), '-', ::getpid(), '-', os::random_bits() % 1'000'000),
      .host = os::host_name(),
      .workers = {},
      .world_size = options.worker_num + options.server_num,
      .servers = options.server_num,
      .seed = os::random_bits(),
      .runs_scheduler = launch.runs_scheduler || launch.stands_by,
      .stands_by = launch.stands_by,
      .continues = options.continues,
      .spares = options.spares,
      .bound_spares = options.bound_spares,
      .max_restarts = options.max_restarts,
      .max_restarts_option = spelled(options, "--max_restarts"),
      .rehearsals = {.on = launch.settings.rehearsals && options.server_num == 0,
                     .strict = launch.settings.strict_rehearsals,
                     .interval = launch.settings.rehearsal_interval,
                     .at_most = launch.settings.rehearsal_timeout,
                     .logs = launch.log_directory},
      .takes_drills = launch.settings.allow_inject,
      // Nobody but a server's own process can save its rows. All else the agents save at the end.
      .snapshot_patience = launch.settings.snapshot.empty() || options.server_num == 0
                               ? Duration{}
                               : time_to_save(launch.settings)};
  if (options.spare_host) {
    made.spare_host = true;
    made.spares = options.local_worker_num;
    made.takes = options.local_worker_num + options.local_server_num;
    made.bound_spares = false;
    return made;
  }
  for (std::int32_t i = 0; i < options.local_worker_num; ++i) {
    made.workers.push_back(cat(options.first_rank + i));
  }
  for (std::int32_t i = 0; i < options.local_server_num; ++i) {
    made.workers.push_back(cat(options.worker_num + options.first_server + i));
  }
  if (options.oversubscribe) {
    made.takes = made.world_size - static_cast<std::int32_t>(made.workers.size());
  }
  return made;
}

std::vector<std::string> names_of(const std::vector<agent::Place>& places) {
  std::vector<std::string> names;
  for (const auto& place : places) names.push_back(place.node_id);
  return names;
}

Agent::Agent(const AgentOptions& options, const Launch& launch, std::function<void()> on_started)
    : options_(options),
      launch_(launch),
      on_started_(std::move(on_started)),
      machine_(machine_options(options, launch)),
      logs_(launch.log_directory,
            [this](std::string text) {
              loop_.post([this, text = std::move(text)] { options_.terminal->say(text); });
            }),
      children_(
          loop_,
          {.argv = launch.argv,
           .server = options.server,
           .environment = launch.environment,
           .job_directory = launch.job_directory,
           .launcher = options.launcher,
           .mark = mark(options),
           .stands_by = launch.stands_by,
           .goes_on = options.continues,
           .logs = &logs_,
           .spare_share = launch.settings.spare_share,
           .places = names_of(machine_.places())},
          [this](agent::Died died) {
            trace_.event("died", {{"process", died.process},
                                  {"exit_code", shell_code(died.ending)},
                                  {"how", wording::in_words(died.ending)},
                                  {"detected_ns", died.detected_ns}});
            step(std::move(died));
          },
          [this](agent::SpareReady ready) { step(ready); }),
      inspector_(loop_, options.launcher,
                 [this](agent::Inspected found) { step(std::move(found)); }),
      snapshots_(loop_, snapshot_options(options, launch),
                 [this](wire::Snapshot answer) { step(agent::SnapshotDone{std::move(answer)}); }) {
  // prepare() has checked the folder. If it has vanished since, the trace is lost, but the job
  // runs.
  if (auto trace = open_trace(launch.settings, "agent")) trace_ = *trace;
  trace_.event("start",
               {{"role", "agent"}, {"job", launch.settings.job}, {"port", options.master_port}});
}

int Agent::run() {
  std::vector<int> signals = {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2};
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) signals.push_back(SIGHUP);  // nohup means to stay.
  loop_.on_signals(signals, [this](int signal) { signalled(signal); });
  loop_.post([this] {
    step(agent::Started{});
    if (machine_.state() == agent::State::kRunning) on_started_();
    link_.open();
    look();
    beat();
  });
  // A whole job waits for this thread's reactions. The watchers' threads inherit its short slice.
  (void)os::take_short_slice();
  loop_.run();
  show_end();
  return exit_.code;
}

// Those that have their places here. The node ids of a launcher's workers are their ranks.
std::vector<Rank> Agent::ranks() const {
  std::vector<Rank> all;
  for (const agent::Place& place : machine_.places()) {
    Rank rank = kNoRank;
    const bool is_rank = place.role == agent::Role::kWorker && read_number(place.node_id, rank);
    if (is_rank) all.push_back(rank);
  }
  return all;
}

// The scheduler of a cluster sends SIGUSR1 or SIGUSR2 some time before the end: to the workers,
// unless the job makes a snapshot then, or is told to end by it.
void Agent::signalled(int signal) {
  const bool ends =
      (signal == SIGUSR1 && options_.usr1_ends) || (signal == SIGUSR2 && options_.usr2_ends);
  if (ends) gentle_ = signal;
  const bool saves = signal == SIGUSR1 && !launch_.settings.snapshot.empty();
  const bool is_word = signal == SIGUSR1 || signal == SIGUSR2;
  if (ends || saves || !is_word) return step(agent::Interrupted{signal});
  for (const agent::Place& place : machine_.places()) {
    const bool trains = place.role == agent::Role::kWorker && place.process != 0;
    if (trains) children_.tell(place.process, signal);
  }
}

void Agent::step(agent::Event event) {
  events_.push_back(std::move(event));
  // Called by an action: the outer call takes the event in turn.
  if (std::exchange(stepping_, true)) return;
  while (!events_.empty()) {
    const auto actions = machine_.step(events_.front());
    events_.pop_front();
    for (const auto& action : actions) {
      std::visit([&](const auto& a) { carry_out(a); }, action);
    }
  }
  stepping_ = false;
}

void Agent::carry_out(const agent::Spawn& action) {
  const auto spawned = children_.spawn(action);
  trace_.event("spawn", {{"process", action.process},
                         {"child", children_.pid_of(action.process)},
                         {"role", name(action.role)},
                         {"node", action.node_id},
                         {"attempt", action.attempt}});
  if (spawned) return;
  step(agent::SpawnFailed{action.process, spawned.error().what});
}

void Agent::carry_out(const agent::Promote& action) {
  children_.promote(action);
  trace_.event("promote", {{"process", action.process},
                           {"child", children_.pid_of(action.process)},
                           {"node", action.node_id},
                           {"attempt", action.attempt}});
}

void Agent::carry_out(const agent::WantPause& action) {
  loop_.after(action.how_long, [this, pause = action.pause] { step(agent::PauseOver{pause}); });
}

void Agent::look() {
  const Instant now = io::Loop::now();
  agent::Looked seen{.stopped = children_.stopped(),
                     .on_time = now < looked_ + 2 * agent::kLookEvery,
                     .whereabouts = children_.whereabouts()};
  looked_ = now;
  step(std::move(seen));
  loop_.after(agent::kLookEvery, [this] { look(); });
}

// Sends heartbeats, so that the scheduler notices the loss of this host.
void Agent::beat() {
  if (machine_.beats()) link_.send(wire::Heartbeat{});
  loop_.after(kBeat, [this] { beat(); });
}

void Agent::carry_out(const agent::Inspect& action) {
  auto subject = children_.subject(action.process, action.node_id);
  if (subject.pid != 0) inspector_.begin(std::move(subject));
}

void Agent::carry_out(const agent::Log& action) {
  const os::Fd log(::open(action.reason.other.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (log) (void)os::write_all(log.get(), cat("msrun: ", wording::in_words(action.reason), '\n'));
}

void Agent::carry_out(const agent::Stay& action) {
  options_.terminal->say(
      cat(action.code == 0 ? "all has ended well here" : wording::in_words(action.reason),
          "; waits for the scheduler, to tell the other hosts, ", action.at_most / 1s,
          " s at most (another signal ends this)"));
}

void Agent::carry_out(const agent::EndHost& action) {
  const int signal = action.stops ? SIGSTOP : SIGKILL;
  children_.signal_all(signal);
  (void)::kill(::getpid(), signal);
  // SIGKILL does nothing to the first process of a container.
  if (!action.stops) ::_exit(128 + SIGKILL);
}

void Agent::carry_out(const agent::Exit& action) {
  exit_ = action;
  trace_.event("end", {{"success", action.code == 0},
                       {"reason", wording::in_words(action.reason)},
                       {"exit_code", action.code},
                       {"node", action.failed_node}});
  link_.close([this] { loop_.stop(); });
}

void Agent::show_end() const {
  if (exit_.drained) {
    return options_.terminal->say(
        cat("the job goes on without this host; logs are in ", launch_.log_directory));
  }
  const auto kind = exit_.reason.kind;
  options_.terminal->show({.exit_code = exit_.code,
                           .reason = wording::in_words(exit_.reason),
                           .was_asked = kind == wire::Reason::Kind::kStopped ||
                                        kind == wire::Reason::Kind::kInterrupted,
                           .log_directory = launch_.log_directory,
                           .failed_log = children_.log_of(exit_.failed_node),
                           .recoveries = recoveries_of(launch_),
                           .reports = cat(launch_.log_directory, '/', kReports)});
}

void Agent::received(wire::Message message) {
  if (const auto* progress = std::get_if<wire::JobProgress>(&message)) {
    const auto& places = machine_.places();
    const auto alive = std::count_if(places.begin(), places.end(), [](const agent::Place& place) {
      return place.role == agent::Role::kWorker && place.process != 0;
    });
    options_.terminal->show(*progress, static_cast<std::size_t>(alive), options_.local_worker_num);
  }
  step(agent::Received{std::move(message)});
}

// The error message if the system has no descriptor or thread left for this process.
std::string without(const std::system_error& error) {
  return os::no_task("can not run this job", error.code().value()).what;
}

// Records this agent in the job's folder, and only then puts other files there (job_files.h).
Status take_folder(const AgentOptions& options, Launch& launch) {
  const auto port = static_cast<std::uint16_t>(launch.runs_scheduler ? options.master_port : 0);
  // `holdfast status` reads the token file's path here: it may run without settings, and find no
  // scheduler on this host.
  auto token_file = launch.settings.token_file;
  std::error_code error;
  if (!token_file.empty()) token_file = std::filesystem::absolute(token_file, error);
  auto written = write_agent_file(launch.job_directory, {.job = launch.settings.job,
                                                         .host = options.master_addr,
                                                         .port = port,
                                                         .sched_port = options.master_port,
                                                         .token_file = token_file,
                                                         .log_dir = launch.log_directory,
                                                         .run = launch.settings.run,
                                                         .program = program_of(options),
                                                         .memory = os::shared_memory_name(),
                                                         .node_rank = options.node_rank});
  if (!written) {
    remove_unused(launch.job_directory);
    return written;
  }
  auto left = launch.passwords.leave_in(launch.job_directory, launch.environment, launch.settings);
  // On the scheduler's host, the scheduler itself calls leave_tls().
  if (left && !launch.runs_scheduler && !launch.settings.tls_config.empty()) {
    left = leave_tls(launch.settings, launch.job_directory);
  }
  if (!left && !options.continues) (void)remove_job_files(launch.job_directory);
  return left;
}

int run_job(const AgentOptions& options, Launch& launch, std::function<void()> on_started) {
  // A write to a spare that has died must fail with EPIPE and not kill the agent.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // A write beyond the file size limit must fail, too.
  if (const auto taken = take_folder(options, launch); !taken) {
    options.terminal->say(taken.error().what);
    return kExitUsage;
  }
  const auto began = std::chrono::system_clock::now();
  for (const auto& remark : launch.remarks) options.terminal->say(remark);
  begin_to_read(launch.settings);
  // A former job's would be taken for this one's.
  if (launch.runs_scheduler && !options.continues) forget_reports(launch);
  int code = 1;
  std::vector<Rank> unsaved;
  try {
    Agent agent(options, launch, std::move(on_started));
    code = agent.run();
    if (agent.may_be_unsaved()) unsaved = agent.ranks();
  } catch (const std::system_error& error) {  // ~Agent has killed all processes.
    options.terminal->say(without(error));
  }
  if (launch.runs_scheduler || launch.stands_by) {
    keep_reports(launch, *options.terminal);
    const Ended ended{.log_directory = launch.log_directory, .began = began};
    const std::string said = options.at_end ? options.at_end(ended) : "";
    if (!said.empty()) options.terminal->say(said);
  }
  leave_snapshot(options, launch, unsaved);
  // A failed --continue must not cost the state that the dead agent left.
  if (options.continues && code != 0) {
    options.terminal->say(
        "what the job has left on this host is kept: --continue goes on with it, and `holdfast "
        "clean` removes it");
    return code;
  }
  if (const auto removed = remove_job_files(launch.job_directory); !removed) {
    options.terminal->say(removed.error().what);
  }
  return code;
}

// The parent's side of a launch into the background. Waits until the child reports that all
// processes have been started, or has ended.
int wait_for_start(int reading, pid_t pid, const Launch& launch, Terminal& terminal) {
  int code = 1;
  const ssize_t got = ::read(reading, &code, sizeof(code));
  if (got != sizeof(code)) {
    terminal.say("the background process ended before it had started the job");
    return 1;
  }
  if (code != 0) return code;
  std::printf(
      "msrun: job %s runs in the background as process %d (SIGTERM ends it); logs are in %s; "
      "`holdfast status` tells how it goes\n",
      launch.settings.job.c_str(), pid, launch.log_directory.c_str());
  return 0;
}

int run_in_background(const AgentOptions& options, Launch& launch) {
  std::array<int, 2> ends{};
  const auto give_up = [&](const Error& error) {
    options.terminal->say(cat(error.what, "; or try --join True"));
    remove_unused(launch.job_directory);
    return 1;
  };
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return give_up(os::system_error("can not make a pipe to a background process", errno));
  }
  const os::Fd reading(ends[0]);
  os::Fd writing(ends[1]);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return give_up(os::no_task("can not start a background process", errno));
  if (pid > 0) {
    writing.reset();
    return wait_for_start(reading.get(), pid, launch, *options.terminal);
  }
  ::setsid();
  const auto tell = [&](int code) {
    if (writing) (void)!::write(writing.get(), &code, sizeof(code));
    writing.reset();
  };
  const int code = run_job(options, launch, [&] {
    // From here on nobody reads the terminal.
    const std::string path = cat(launch.log_directory, "/msrun", options.node_rank == 0 ? "" : "_",
                                 options.node_rank == 0 ? "" : cat(options.node_rank), ".log");
    const int begins = options.continues ? O_APPEND : O_TRUNC;
    const os::Fd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | begins, 0644));
    const os::Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::dup2(null.get(), STDIN_FILENO);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      ::dup2(log ? log.get() : null.get(), stream);
    }
    // This line reserves the log's first block on disk, so that later lines fit even if the disk is
    // full by then.
    options.terminal->say(cat("job ", launch.settings.job, " runs as process ", ::getpid()));
    tell(0);
  });
  std::fflush(nullptr);
  tell(code);
  ::_exit(code);
}

}  // namespace

int run_agent(const AgentOptions& options) try {
  const auto refuse = [&](const Error& why, int exit_code) {
    options.terminal->say(why.what);
    return exit_code;
  };
  const auto argv =
      options.launcher->command(options.program, value_of(options.environment, "PATH"));
  if (!argv) return refuse(argv.error(), kExitNoProgram);
  auto prepared = prepare(options, *argv);
  if (!prepared) return refuse(prepared.error(), kExitUsage);
  Launch& launch = *prepared;
  if (!options.join) return run_in_background(options, launch);
  return run_job(options, launch, [] {});
} catch (const std::system_error& error) {
  options.terminal->say(without(error));
  return 1;
}

}  // namespace holdfast::runtime
