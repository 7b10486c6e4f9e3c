#include "runtime/jobs/snapshots.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>

#include "base/text.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {
namespace {

constexpr const char* kAuto = "auto";

// HOLDFAST_RESUME is one snapshot, not a folder of them.
bool is_one(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path + "/manifest.json", error);
}

// The folder of snapshots that HOLDFAST_RESUME means.
std::string resumed_folder(const config::Settings& settings) {
  if (settings.resume == kAuto) return settings.snapshot;
  std::filesystem::path path = settings.resume;
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  return is_one(settings.resume) ? path.parent_path().string() : path.string();
}

std::string size_in_words(std::int32_t ranks, std::int32_t servers) {
  const std::string workers = counted(ranks - servers, "worker");
  return servers == 0 ? workers : cat(workers, " and ", counted(servers, "server"));
}

}  // namespace

std::string folder_with(const config::Settings& settings, const std::string& name) {
  std::error_code error;
  const bool is_own =
      settings.resume.empty() || (!settings.snapshot.empty() &&
                                  std::filesystem::exists(settings.snapshot + '/' + name, error));
  return is_own ? settings.snapshot : resumed_folder(settings);
}

std::string parts_begin(Rank rank) {
  return cat("rank-", rank, ".snapshot-");
}

std::string loaded_file(Rank rank) {
  return cat("rank-", rank, ".loaded");
}

void read_ahead(const config::Settings& settings) {
  if (settings.resume.empty()) return;
  const std::string folder = resumed_folder(settings);
  std::string name;
  if (settings.resume != kAuto && is_one(settings.resume)) {
    name = std::filesystem::path(settings.resume).filename().string();
  } else if (const auto found = snapshot::find(folder); found && !found->whole.empty()) {
    name = found->whole.front().name;
  } else {
    return;
  }
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  snapshot::read_ahead(folder, name, pages * page / 4);
}

Result<Resumed> resume_by(const config::Settings& settings) {
  Resumed resumed;
  if (settings.resume.empty()) return resumed;
  const bool is_auto = settings.resume == kAuto;
  if (is_auto && settings.snapshot.empty()) {
    return Error{Blame::kUser,
                 "--resume is auto, but no folder of snapshots is named: give --snapshot, or "
                 "--resume that folder"};
  }
  const std::string folder = resumed_folder(settings);
  const auto found = snapshot::find(folder);
  if (!found) return found.error();
  const auto only = !is_auto && is_one(settings.resume)
                        ? std::optional(std::filesystem::path(settings.resume).filename().string())
                        : std::nullopt;
  for (const auto& half : found->half) {
    if (is_auto) (void)snapshot::remove(folder, half);  // What can not be removed costs only room.
  }
  const std::int32_t ranks = settings.worker_num + settings.server_num;
  for (const auto& [name, manifest] : found->whole) {
    if (only && name != *only) continue;
    if (manifest.world_size != ranks || manifest.servers != settings.server_num) {
      if (!resumed.snapshots.empty()) break;
      return Error{Blame::kUser,
                   cat("the snapshot ", folder, '/', name, " is of a job of ",
                       size_in_words(manifest.world_size, manifest.servers), ", and this one has ",
                       size_in_words(ranks, settings.server_num),
                       ": start as many, or name another snapshot")};
    }
    // One of an earlier run may be further on. It is no ancestor of this one.
    auto& all = resumed.snapshots;
    if (all.empty()) {
      resumed.program = manifest.program;
      resumed.release = manifest.release;
    }
    if (all.empty() || manifest.version < all.back().version) {
      all.push_back({manifest.version, name});
    }
  }
  for (const auto& sentence : found->unusable) resumed.remarks.push_back(sentence);
  if (resumed.snapshots.empty() && !found->unusable.empty()) {
    std::string why;
    for (const auto& sentence : found->unusable) why += cat(why.empty() ? "" : "; ", sentence);
    return Error{Blame::kUser, cat("no snapshot in ", folder, " can be used: ", why,
                                   ". Leave --resume out to begin anew")};
  }
  if (resumed.snapshots.empty() && is_auto) {
    resumed.remarks.push_back(cat("there is no snapshot in ", folder, " yet: the job begins anew"));
  }
  if (resumed.snapshots.empty() && !is_auto) {
    return Error{Blame::kUser, cat("there is no whole snapshot in ", settings.resume,
                                   ": name another folder, or leave --resume out to "
                                   "begin anew")};
  }
  return resumed;
}

}  // namespace holdfast::runtime
