// What a launcher does about snapshots before its processes start and after they have ended.
#pragma once

#include <vector>

#include "base/ids.h"
#include "runtime/agent/launch.h"
#include "runtime/agent/snapshot_writer.h"

namespace holdfast::runtime {

// How long the processes of a job that is told to end may go on; and what is left for a snapshot.
Duration grace_of(const config::Settings& settings);
Duration time_to_save(const config::Settings& settings);

SnapshotWriter::Options snapshot_options(const AgentOptions& options, const Launch& launch);

// Has the disk read what the job begins with while the processes of this host start.
void begin_to_read(const config::Settings& settings);

// Makes a last snapshot of what these ranks of the job have left in memory, which would go with the
// job's folder, and says so. Removes those that it replaces: a job that is ended again and again
// before it makes others would fill the disk.
void leave_snapshot(const AgentOptions& options, const Launch& launch,
                    const std::vector<Rank>& ranks);

}  // namespace holdfast::runtime
