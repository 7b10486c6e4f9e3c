#include "runtime/scheduler/scheduler.h"

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"
#include "core/controller/takeover.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/given_paths.h"
#include "runtime/jobs/job_files.h"
#include "runtime/jobs/membership.h"
#include "runtime/scheduler/server.h"

namespace holdfast::runtime {
namespace {

constexpr Duration kTakeoverPatience = std::chrono::seconds(5);  // For a dying predecessor's port.

controller::Claim claim_of(const config::Settings& settings) {
  return {.attempt = settings.attempt,
          .by_hand_again = settings.enable_recovery,
          .run = settings.run,
          .world_size = settings.worker_num};
}

Result<std::unique_ptr<io::Listener>> listen(io::Loop& loop, const config::Settings& settings) {
  const Instant until =
      io::Loop::now() +
      (controller::may_succeed(claim_of(settings)) ? kTakeoverPatience : Duration{});
  while (true) {
    auto listener = io::listen(loop, settings.sched_host, settings.sched_port);
    if (listener || io::Loop::now() >= until) return listener;
    // The kernel frees a killed predecessor's port only after its memory, and tells nobody.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Opens the journal and goes on with its formation, or begins a new one.
Status open_journal(Opened& opened) {
  const config::Settings& settings = opened.settings;
  const std::string& folder =
      settings.recovery_path.empty() ? opened.directory : settings.recovery_path;
  opened.journal_path = cat(folder, '/', settings.job, ".journal");
  auto journal = io::Journal::open(opened.journal_path, settings.job);
  if (!journal) return journal.error();
  opened.journal = std::move(*journal);
  wire::Memory memory;
  const controller::Claim claim = claim_of(settings);
  if (controller::may_succeed(claim)) {
    auto loaded = opened.journal->load();
    if (!loaded) return loaded.error();
    memory = std::move(*loaded);
  }
  switch (controller::judge(claim, memory.formation)) {
    case controller::Takeover::kGoOn:
      opened.memory = std::move(memory);
      return {};
    case controller::Takeover::kOtherSize:
      return Error{Blame::kUser, cat("the journal ", opened.journal_path, " is of a job with ",
                                     memory.formation->roster.size(),
                                     " workers, but MS_WORKER_NUM is ", settings.worker_num,
                                     ": set it to that, or remove the journal to start anew")};
    case controller::Takeover::kBegin:
      break;
  }
  // Stored at once: an older job's formation must not be found by our own successor.
  opened.memory.formation = wire::Formation{
      .job = settings.job, .run_id = settings.run != 0 ? settings.run : os::random_bits()};
  return opened.journal->begin(*opened.memory.formation);
}

Result<int> open_and_serve(const config::Settings& settings) {
  Opened opened{.settings = settings};
  auto held = hold_lifeline(settings);
  if (!held) return held.error();
  auto trace = open_trace(settings, "scheduler");
  if (!trace) return trace.error();
  opened.trace = std::move(*trace);

  if (const auto good = check_tls(settings, true); !good) return good.error();
  io::Loop loop;
  auto listener = listen(loop, settings);
  if (!listener) return listener.error();
  // Only now is it certain that no other scheduler serves this job: it would hold the port. The
  // runtime folder is made last: who can not serve leaves none behind.
  if (const auto usable = check_folder("MS_RECOVERY_PATH", settings.recovery_path); !usable) {
    return usable.error();
  }
  auto directory = os::runtime_directory(settings.job);
  if (!directory) return directory.error();
  opened.directory = std::move(*directory);
  // Before anything else is there: `holdfast clean` takes a dead job's folder away, and this one's
  // may be there from before.
  const auto written = write_scheduler_file(
      opened.directory,
      {.job = settings.job, .host = settings.sched_host, .port = settings.sched_port});
  if (!written) return written.error();
  auto membership = membership_of_scheduler(settings, opened.directory);
  if (!membership) return membership.error();
  if (const auto ready = open_journal(opened); !ready) return ready.error();
  Server server(loop, std::move(opened));
  return server.run(**listener, *std::move(membership));
}

}  // namespace

int serve(const config::Settings& settings) try {
  const auto code = open_and_serve(settings);
  if (code) return *code;
  say(cat("can not serve job ", settings.job, ": ", code.error().what));
  return 1;
} catch (const std::system_error& error) {  // A descriptor that can not be had.
  const auto what = cat("can not serve job ", settings.job);
  say(os::system_error(what, error.code()).what);
  return 1;
}

}  // namespace holdfast::runtime
