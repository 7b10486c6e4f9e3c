#include "runtime/agent/saving.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "base/text.h"
#include "os/slice.h"
#include "runtime/agent/last_snapshot.h"
#include "runtime/jobs/snapshots.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {

using namespace std::chrono_literals;

Duration grace_of(const config::Settings& settings) {
  const Duration time = settings.shutdown_timeout;
  return settings.snapshot.empty() ? time : std::min<Duration>(time, settings.grace / 2);
}

Duration time_to_save(const config::Settings& settings) {
  return settings.grace - grace_of(settings);
}

SnapshotWriter::Options snapshot_options(const AgentOptions& options, const Launch& launch) {
  return {.folder = launch.settings.snapshot,
          .job_directory = launch.job_directory,
          .job = launch.settings.job,
          .program = program_of(options),
          .world_size = options.worker_num + options.server_num,
          .servers = options.server_num};
}

void begin_to_read(const config::Settings& settings) {
  if (settings.resume.empty()) return;
  try {
    std::thread([settings] {
      os::take_usual_slice();
      read_ahead(settings);
    }).detach();
  } catch (const std::system_error&) {  // Then whoever loads it waits for the disk.
  }
}

void leave_snapshot(const AgentOptions& options, const Launch& launch,
                    const std::vector<Rank>& ranks) {
  if (launch.settings.snapshot.empty() || options.server_num > 0 || ranks.empty()) return;
  const Duration time = time_to_save(launch.settings);
  const auto left = leave_last_snapshot(snapshot_options(options, launch), ranks, time, [&] {
    options.terminal->say(cat("saves the last step that was made in ", launch.settings.snapshot,
                              ", within ", time / 1s, " s"));
  });
  if (!left) {
    options.terminal->say(cat("no last snapshot: ", left.error().what));
  } else if (left->empty()) {
    options.terminal->say("no step was made since the job began: there is none to save");
  } else {
    options.terminal->say(cat("the last step that was made is in the snapshot ", *left,
                              ": --resume goes on from it"));
    const auto kept = static_cast<std::size_t>(launch.settings.snapshot_keep);
    for (std::size_t i = kept; i < launch.ancestors.size(); ++i) {
      (void)snapshot::remove(launch.settings.snapshot, launch.ancestors[i]);
    }
  }
}

}  // namespace holdfast::runtime
