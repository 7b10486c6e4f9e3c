#include "runtime/scheduler/scheduler.h"

#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/given_paths.h"
#include "runtime/jobs/job_files.h"
#include "runtime/scheduler/log.h"
#include "runtime/scheduler/server.h"

namespace holdfast::runtime {
namespace {

constexpr Duration kTakeoverPatience = std::chrono::seconds(5);  // For a dying predecessor's port.

// A first attempt is of a new agent, whose processes are all new: there is nobody to be found
// again.
bool takes_back(const config::Settings& settings) {
  return settings.attempt > 1 || (settings.attempt == 0 && settings.enable_recovery);
}

template <class OnAccept>
Result<std::unique_ptr<io::Listener>> listen(io::Loop& loop, const config::Settings& settings,
                                             OnAccept on_accept) {
  const Instant until = io::Loop::now() + (takes_back(settings) ? kTakeoverPatience : Duration{});
  while (true) {
    auto listener = io::listen(loop, settings.sched_host, settings.sched_port, on_accept);
    if (listener || io::Loop::now() >= until) return listener;
    // The kernel frees a killed predecessor's port only after its memory, and tells nobody.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Opens the journal and takes its record back, or begins a new one.
Status open_journal(Opened& opened) {
  const config::Settings& settings = opened.settings;
  const std::string& folder =
      settings.recovery_path.empty() ? opened.directory : settings.recovery_path;
  opened.journal_path = cat(folder, '/', settings.job, ".journal");
  auto journal = io::Journal::open(opened.journal_path, settings.job);
  if (!journal) return journal.error();
  opened.journal = std::move(*journal);
  if (takes_back(settings)) {
    auto record = opened.journal->load();
    if (!record) return record.error();
    // A predecessor of ours may have died before it had stored anything: then this is an older
    // job's of the same name.
    const bool ours = *record && (settings.run == 0 || (*record)->run_id == settings.run);
    if (ours) opened.record = std::move(**record);
  }
  if (opened.record.job.empty()) {
    // Stored at once: an older job's record must not be found by our own successor.
    opened.record = wire::Record{.job = settings.job,
                                 .run_id = settings.run != 0 ? settings.run : os::random_bits()};
    return opened.journal->store(opened.record);
  }
  if (const auto ranks = opened.record.ranks.size();
      ranks != 0 && ranks != static_cast<std::size_t>(settings.worker_num)) {
    return Error{Blame::kUser, cat("the journal ", opened.journal_path, " is of a job with ", ranks,
                                   " workers, but MS_WORKER_NUM is ", settings.worker_num,
                                   ": set it to that, or remove the journal to start anew")};
  }
  return {};
}

Result<int> open_and_serve(const config::Settings& settings) {
  Opened opened{.settings = settings};
  auto held = hold_lifeline(settings);
  if (!held) return held.error();
  auto trace = open_trace(settings, "scheduler");
  if (!trace) return trace.error();
  opened.trace = std::move(*trace);

  io::Loop loop;
  Server* server = nullptr;  // There before the loop runs, and with it the first accept.
  auto listener = listen(loop, settings, [&](auto connection) { server->accept(connection); });
  if (!listener) return listener.error();
  // Only now is it certain that no other scheduler serves this job: it would hold the port. The
  // runtime folder is made last: who can not serve leaves none behind.
  if (const auto usable = check_folder("MS_RECOVERY_PATH", settings.recovery_path); !usable) {
    return usable.error();
  }
  auto directory = os::runtime_directory(settings.job);
  if (!directory) return directory.error();
  opened.directory = std::move(*directory);
  if (const auto ready = open_journal(opened); !ready) return ready.error();
  const auto written = write_scheduler_file(
      opened.directory,
      {.job = settings.job, .host = settings.sched_host, .port = settings.sched_port});
  if (!written) return written.error();
  Server shell(loop, std::move(opened));
  server = &shell;
  return shell.run();
}

}  // namespace

int serve(const config::Settings& settings) try {
  const auto code = open_and_serve(settings);
  if (code) return *code;
  log_line("scheduler", cat("can not serve job ", settings.job, ": ", code.error().what));
  return 1;
} catch (const std::system_error& error) {  // A descriptor that can not be had.
  const auto what = cat("can not serve job ", settings.job);
  log_line("scheduler", os::system_error(what, error.code()).what);
  return 1;
}

}  // namespace holdfast::runtime
