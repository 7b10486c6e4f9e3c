#include "sim/disk.h"

#include <algorithm>

#include "base/text.h"

namespace holdfast::sim {

void Disk::name(const wire::Snapshot& order, Rank ranks, Checkers& checkers) {
  Folder& folder = folders_[order.name];
  for (Rank rank = 0; rank < ranks; ++rank) {
    const auto part = folder.parts.find(rank);
    const auto file = std::find_if(order.files.begin(), order.files.end(),
                                   [&](const auto& f) { return f.rank == rank; });
    if (part == folder.parts.end() || file == order.files.end()) {
      checkers.violate(cat("S8: a snapshot is named before rank ", rank, " has written its part"));
    } else if (part->second.version != order.version || file->digest != part->second.content) {
      checkers.violate(cat("S8: a snapshot is named with a part of another version, rank ", rank));
    } else if (part->second.generation != folder.parts.begin()->second.generation) {
      checkers.violate("S8: a snapshot is named with parts of several generations");
    }
  }
  folder.version = order.version;
  folder.is_whole = true;
  folder.number = ++named_;
}

void Disk::remove(const std::string& name, const std::string& loaded, Checkers& checkers) {
  const auto found = folders_.find(name);
  if (found == folders_.end()) return;
  const Folder& folder = found->second;
  if (folder.is_whole && folder.number == named_) {
    checkers.violate("S9: the newest whole snapshot is removed");
  }
  if (folder.is_whole && name == loaded && !is_any_damaged_) {
    checkers.violate("S9: a snapshot is removed with which the job begins again");
  }
  folders_.erase(found);
}

Disk::Folder* Disk::find(const std::string& name) {
  const auto found = folders_.find(name);
  return found == folders_.end() ? nullptr : &found->second;
}

std::vector<wire::SnapshotName> Disk::whole() const {
  std::map<std::uint64_t, wire::SnapshotName, std::greater<>> newest;
  for (const auto& [name, folder] : folders_) {
    if (folder.is_whole) newest[folder.number] = {folder.version, name};
  }
  std::vector<wire::SnapshotName> all;
  for (const auto& [number, one] : newest) {
    if (all.empty() || one.version < all.back().version) all.push_back(one);
  }
  return all;
}

Version Disk::readable(const std::vector<wire::SnapshotName>& of) const {
  Version newest = 0;
  for (const auto& [version, name] : of) {
    const auto found = folders_.find(name);
    if (found == folders_.end()) continue;
    const Folder& folder = found->second;
    if (folder.is_whole && !folder.is_damaged) newest = std::max(newest, version);
  }
  return newest;
}

}  // namespace holdfast::sim
