// Where a job's snapshots are, by its settings: those that it makes, and those that it may begin
// with.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "config/settings.h"
#include "wire/formation.h"

namespace holdfast::runtime {

// The folder that a snapshot of this name lies in: HOLDFAST_SNAPSHOT, or that of HOLDFAST_RESUME.
[[nodiscard]] std::string folder_with(const config::Settings& settings, const std::string& name);

// How the files begin that a rank leaves in the job's folder for its agent; the version follows.
[[nodiscard]] std::string parts_begin(Rank rank);

// The file in the job's folder that names the snapshot which a rank has loaded last.
[[nodiscard]] std::string loaded_file(Rank rank);

// In place of the version: the agent needs it no more, and its memory may be used again.
inline constexpr const char* kFreePart = "free";

// What a new job may begin with by HOLDFAST_RESUME, the newest first. With auto, what was never
// finished in HOLDFAST_SNAPSHOT is removed: the folder is of this job, which does not run yet.
struct Resumed {
  std::vector<wire::SnapshotName> snapshots;  // Empty: it begins anew.
  std::vector<std::string> remarks;           // Sentences for the user.
  std::string program, release;               // Those that made the newest one.
};
// Error: HOLDFAST_RESUME names no whole snapshot, or one of a job of another size.
[[nodiscard]] Result<Resumed> resume_by(const config::Settings& settings);

// Has the disk read what HOLDFAST_RESUME means, as long as that is no more than a quarter of this
// machine's memory: all files, since each rank needs a part of each. Returns once that is begun.
void read_ahead(const config::Settings& settings);

}  // namespace holdfast::runtime
