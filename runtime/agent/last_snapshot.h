// The last snapshot: what the processes of a job that has failed have left in memory, before that
// memory is given back.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "runtime/agent/snapshot_writer.h"

namespace holdfast::runtime {

struct LastSteps {
  std::vector<Rank> ranks;  // Those that have their places with this agent.
  Version after = 0;        // Only newer versions are worth a snapshot.
  Duration time{};          // For all of it. It is looked at between blocks.
};

// Brings the arenas in the job's folder to the newest version that those of all ranks can have, and
// makes a snapshot of them, whichever ranks have died, unless there is such a snapshot already.
// Each agent calls it for its ranks; several find each other by HostNotes. Returns the snapshot's
// name; empty if nothing newer was left. Calls `on_begin` if there may be something. Requires: no
// process of the ranks runs; the job had no parameter servers. Error: a rank's state is gone, or is
// of another version; or it could not be written, or not in time.
[[nodiscard]] Result<std::string> leave_last_snapshot(const SnapshotWriter::Options& options,
                                                      const LastSteps& steps,
                                                      const std::function<void()>& on_begin = {});

}  // namespace holdfast::runtime
