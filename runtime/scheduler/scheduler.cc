#include "runtime/scheduler/scheduler.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "core/controller/takeover.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/agent_watch.h"
#include "runtime/jobs/given_paths.h"
#include "runtime/jobs/job_files.h"
#include "runtime/jobs/membership.h"
#include "runtime/jobs/snapshots.h"
#include "runtime/scheduler/leadership.h"
#include "runtime/scheduler/say.h"
#include "runtime/scheduler/server.h"

namespace holdfast::runtime {
namespace {

constexpr Duration kBetweenTries = std::chrono::milliseconds(20);
// Between looks at unusable certificates, or tries at a port that another program holds.
constexpr Duration kBetweenLooks = std::chrono::milliseconds(500);
// How long a killed predecessor may still hold the port. The kernel frees the port only after the
// process's memory, and sends no notice.
constexpr Duration kOfDyingPredecessor = std::chrono::seconds(1);

// The wait of a scheduler that can not serve yet, for `patience` at most.
class Wait {
 public:
  Wait(io::Loop& loop, const config::Settings& settings, Duration patience)
      : loop_(loop), agent_(settings), job_(settings.job), patience_(patience) {}

  [[nodiscard]] Duration passed() const { return io::Loop::now() - began_; }
  [[nodiscard]] bool is_over() const { return passed() >= patience_; }

  void pause(Duration time) {
    if (agent_.gone()) agent_.follow();
    loop_.after(time, [this] { loop_.stop(); });
    loop_.run();
  }

  void say_once(const std::string& why) {
    if (std::exchange(said_, why) == why) return;
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(patience_ - passed()).count();
    say(cat("can not serve job ", job_, " yet: ", why, ". It is tried again, for ", seconds,
            " s at most"));
  }

 private:
  io::Loop& loop_;
  const AgentWatch agent_;
  const std::string job_;
  const Duration patience_;
  const Instant began_ = io::Loop::now();
  std::string said_;
};

controller::Candidate candidate_of(const config::Settings& settings) {
  return {.attempt = settings.attempt,
          .by_hand_again = settings.enable_recovery,
          .run = settings.run,
          .world_size = settings.worker_num + settings.server_num};
}

controller::Patience patience_of(const config::Settings& settings) {
  return controller::patience_of(candidate_of(settings), settings.scheduler_timeout);
}

Result<std::unique_ptr<io::Listener>> listen(io::Loop& loop, const config::Settings& settings,
                                             Duration patience) {
  Wait wait(loop, settings, patience);
  while (true) {
    auto listener = io::listen(loop, settings.sched_host, settings.sched_port);
    if (listener || wait.is_over()) return listener;
    const bool is_strangers = wait.passed() > kOfDyingPredecessor;
    if (is_strangers) wait.say_once(listener.error().what);
    wait.pause(is_strangers ? kBetweenLooks : kBetweenTries);
  }
}

// Waits until TLS can begin here. Meanwhile each process of the job that connects is told why it
// can not.
Result<io::Membership> membership_in_time(io::Loop& loop, io::Listener& listener,
                                          const Opened& opened) {
  Wait wait(loop, opened.settings, patience_of(opened.settings).tls);
  while (true) {
    auto membership = membership_of_scheduler(opened.settings, opened.directory);
    if (!membership || membership->tls_problem.empty()) return membership;
    const std::string problem = membership->tls_problem;
    if (wait.is_over()) return Error{Blame::kUser, problem};
    wait.say_once(problem);
    listener.serve({.membership = *std::move(membership), .on_accept = [](const auto&, auto) {}});
    wait.pause(kBetweenLooks);
  }
}

// A scheduler that stood by listens at its own host's address, at the job's port if that is free
// there.
Result<std::unique_ptr<io::Listener>> listen_as(io::Loop& loop, const Leadership* leads,
                                                config::Settings& settings) {
  if (leads == nullptr || !settings.standby) {
    // A scheduler that takes a job over does not need this port, so it does not wait for it long:
    // another one is free at once.
    const bool takes_over = leads != nullptr && leads->lead().takes_over;
    const Duration patience = patience_of(settings).port;
    auto listener =
        listen(loop, settings, takes_over ? std::min(patience, kOfDyingPredecessor) : patience);
    if (listener || !takes_over) return listener;
  }
  const std::string own = os::address_towards(settings.sched_host);
  if (own.empty()) {
    return Error{Blame::kWorld, cat("this host has no address from which it would reach ",
                                    settings.sched_host, " (MS_SCHED_HOST)")};
  }
  auto listener = io::listen(loop, own, settings.sched_port);
  if (!listener) listener = io::listen(loop, own, 0);
  if (!listener) return listener;
  settings.sched_host = own;
  settings.sched_port = (*listener)->port();
  return listener;
}

// Sets run and attempt as if this scheduler's agent had started all earlier schedulers of the run,
// too.
void take_over(const election::Lead& lead, config::Settings& settings, io::Trace& trace) {
  settings.run = lead.key.leader.run;
  if (!lead.takes_over) return;
  settings.attempt = std::max<std::uint64_t>(settings.attempt, 2);
  const auto ms =
      std::chrono::ceil<std::chrono::milliseconds>(lead.without.value_or(Duration{})).count();
  say(cat("takes over job ", settings.job,
          lead.without ? cat(" from the scheduler on ", lead.predecessor,
                             ", whose key in etcd was last seen ", ms, " ms ago")
                       : " from its predecessor"));
  trace.event("takeover", {{"job", settings.job}, {"without_ms", ms}});
}

// Opens the journal and goes on with its formation, or begins a new one. False: there is nothing to
// go on with, since the job has ended just before this scheduler had its turn.
Result<bool> open_journal(Opened& opened, const Leadership* leads, std::uint64_t own_run) {
  const config::Settings& settings = opened.settings;
  const std::string& folder =
      settings.recovery_path.empty() ? opened.directory : settings.recovery_path;
  auto journal = leads != nullptr
                     ? leads->journal()
                     : io::Journal::open(cat(folder, '/', settings.job, ".journal"), settings.job);
  if (!journal) return journal.error();
  opened.journal = std::move(*journal);
  wire::Memory memory;
  controller::Candidate candidate = candidate_of(settings);
  candidate.of_others =
      leads != nullptr && leads->lead().takes_over && leads->lead().key.leader.run != own_run;
  if (controller::may_succeed(candidate)) {
    auto loaded = opened.journal->load();
    if (!loaded) return loaded.error();
    memory = std::move(*loaded);
  }
  switch (controller::choose_takeover(candidate, memory.formation)) {
    case controller::Takeover::kGoOn:
      opened.memory = std::move(memory);
      return true;
    case controller::Takeover::kOtherSize:
      return Error{
          Blame::kUser,
          cat(opened.journal->name(), " is of a job with ", memory.formation->roster.size(),
              " workers and servers, but MS_WORKER_NUM is ", settings.worker_num,
              " and MS_SERVER_NUM ", settings.server_num,
              ": set them to that, or remove the journal to start anew")};
    case controller::Takeover::kEnded:
      return false;
    case controller::Takeover::kBegin:
      break;
  }
  const auto resumed = resume_by(settings);
  if (!resumed) return resumed.error();
  // Stored at once: an older job's formation must not be found by our own successor.
  opened.memory.formation = wire::Formation{
      .job = settings.job, .run_id = settings.run != 0 ? settings.run : os::random_bits()};
  opened.memory.formation->snapshots = resumed->snapshots;
  const auto begun = opened.journal->begin(*opened.memory.formation);
  return begun ? Result(true) : begun.error();
}

int end_of_standby(const config::Settings& settings) {
  say(cat("job ", settings.job, " has ended, and this scheduler was not needed"));
  return 0;
}

Result<int> open_and_serve(const config::Settings& given) {
  Opened opened{.settings = given};
  config::Settings& settings = opened.settings;
  auto held = hold_lifeline(given);
  if (!held) return held.error();
  auto trace = open_trace(given, "scheduler");
  if (!trace) return trace.error();
  opened.trace = std::move(*trace);
  io::Loop loop;
  std::unique_ptr<Leadership> leads;
  if (!given.etcd.empty()) {
    auto led = Leadership::wait_for(loop, given, opened.trace);
    if (!led) return led.error();
    if (!*led) return end_of_standby(given);
    leads = *std::move(led);
    take_over(leads->lead(), settings, opened.trace);
    if (leads->lead().without) opened.suspect_host = leads->lead().predecessor;
  }

  const auto good = check_tls(settings, true);
  if (!good && patience_of(settings).tls == Duration{}) return good.error();
  auto listener = listen_as(loop, leads.get(), settings);
  if (!listener) return listener.error();
  // Only now is it certain that no other scheduler serves this job: that one would hold the port.
  // The runtime folder is made last, so that a scheduler that can not serve leaves none behind.
  if (const auto usable = check_folder("MS_RECOVERY_PATH", settings.recovery_path); !usable) {
    return usable.error();
  }
  auto directory = os::runtime_directory(settings.job);
  if (!directory) return directory.error();
  opened.directory = std::move(*directory);
  // Written before anything else: `holdfast clean` removes the folder of a dead job, and this
  // folder may be one.
  const auto written = write_scheduler_file(
      opened.directory,
      {.job = settings.job, .host = settings.sched_host, .port = settings.sched_port});
  if (!written) return written.error();
  auto membership = membership_in_time(loop, **listener, opened);
  if (!membership) return membership.error();
  const auto ready = open_journal(opened, leads.get(), given.run);
  if (!ready) return ready.error();
  if (!leads) return Server(loop, std::move(opened)).run(**listener, *std::move(membership));
  if (*ready) {
    const auto known = leads->publish(opened.directory, settings.sched_host, settings.sched_port);
    if (!known) return known.error();
  }
  const int code = *ready ? Server(loop, std::move(opened)).run(**listener, *std::move(membership))
                          : end_of_standby(given);
  leads->give_up();
  return code;
}

}  // namespace

int serve(const config::Settings& settings) try {
  const auto code = open_and_serve(settings);
  if (code) return *code;
  say(cat("can not serve job ", settings.job, ": ", code.error().what));
  return 1;
} catch (const std::system_error& error) {  // The system has no descriptor left for this process.
  const auto what = cat("can not serve job ", settings.job);
  say(os::system_error(what, error.code()).what);
  return 1;
}

}  // namespace holdfast::runtime
