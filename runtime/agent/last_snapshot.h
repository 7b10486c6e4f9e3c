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

// Brings the arenas in the job's folder to the newest version that those of all ranks can have, and
// makes a snapshot of them, whichever ranks have died, unless there is such a snapshot already.
// Each agent calls it for `ranks`, which have their places with it; several find each other by
// HostNotes. Calls `on_begin` before it writes. Returns the snapshot's name; empty if no step was
// made since the job began, or since it loaded a snapshot of that folder. Requires: no process of
// the ranks runs; the job had no parameter servers. Error: a rank's state is gone, or is of another
// version; or it could not be written, or not within `time` (which is looked at between blocks).
[[nodiscard]] Result<std::string> leave_last_snapshot(const SnapshotWriter::Options& options,
                                                      const std::vector<Rank>& ranks, Duration time,
                                                      const std::function<void()>& on_begin = {});

}  // namespace holdfast::runtime
