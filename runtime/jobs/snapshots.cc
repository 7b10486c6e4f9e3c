#include "runtime/jobs/snapshots.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/text.h"
#include "snapshot/folder.h"

namespace holdfast::runtime {
namespace {

constexpr const char* kAuto = "auto";

// What HOLDFAST_RESUME means: the snapshots of a folder, or one of them.
struct Meant {
  std::string folder;
  std::string only;  // Its name; empty: any.

  [[nodiscard]] bool has(const std::string& name) const { return only.empty() || name == only; }
};

Meant meant_by(const config::Settings& settings) {
  if (settings.resume == kAuto) return {settings.snapshot, ""};
  std::filesystem::path path = settings.resume;
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  std::error_code error;
  const bool is_one = std::filesystem::exists(path / "manifest.json", error);
  if (!is_one) return {path.string(), ""};
  return {path.parent_path().string(), path.filename().string()};
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
  return is_own ? settings.snapshot : meant_by(settings).folder;
}

std::string parts_begin(Rank rank) {
  return cat("rank-", rank, ".snapshot-");
}

std::string loaded_file(Rank rank) {
  return cat("rank-", rank, ".loaded");
}

void read_ahead(const config::Settings& settings) {
  if (settings.resume.empty()) return;
  const Meant meant = meant_by(settings);
  const auto found = snapshot::find(meant.folder);
  if (!found) return;
  const auto newest = std::find_if(found->whole.begin(), found->whole.end(),
                                   [&](const auto& one) { return meant.has(one.name); });
  if (newest == found->whole.end()) return;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  snapshot::read_ahead(meant.folder, newest->name, pages * page / 4);
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
  const Meant meant = meant_by(settings);
  const std::string& folder = meant.folder;
  const auto found = snapshot::find(folder);
  if (!found) return found.error();
  for (const auto& half : found->half) {
    if (is_auto) (void)snapshot::remove(folder, half);  // What can not be removed costs only room.
  }
  const std::int32_t ranks = settings.worker_num + settings.server_num;
  for (const auto& [name, manifest] : found->whole) {
    if (!meant.has(name)) continue;
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
