// The last snapshot: what the processes of a job that has failed have left in memory, before that
// memory is given back.
#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "runtime/agent/snapshot_writer.h"

namespace holdfast::runtime {

// Brings the arenas in the job's folder to the newest version that all can have, and makes a
// snapshot of them, whichever ranks have died, unless there is one of that version already. Returns
// its name. Requires: no process of the job runs, and all of its ranks were here. Error: a
// rank's state is gone, or is of another version; or it could not be written, or not within `time`
// (which is looked at between blocks).
[[nodiscard]] Result<std::string> leave_last_snapshot(const SnapshotWriter::Options& options,
                                                      Duration time);

}  // namespace holdfast::runtime
