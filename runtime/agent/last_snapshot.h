// The last snapshot: what the processes of a job that has failed have left in memory, before that
// memory is given back.
#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "runtime/agent/snapshot_writer.h"

namespace holdfast::runtime {

// Brings the arenas in the job's folder to the newest version that those of all ranks can have, and
// makes a snapshot of them, whichever ranks have died, unless there is one of that version already.
// On several hosts each agent calls it; they find each other by HostNotes. Returns the snapshot's
// name; empty if no rank has left anything here. Requires: no process of the job runs on this host;
// the job had no parameter servers. Error: a rank's state is gone, or is of another version; or it
// could not be written, or not within `time` (which is looked at between blocks).
// `is_alone`: the job was on this host alone, so nobody else is waited for.
[[nodiscard]] Result<std::string> leave_last_snapshot(const SnapshotWriter::Options& options,
                                                      bool is_alone, Duration time);

}  // namespace holdfast::runtime
