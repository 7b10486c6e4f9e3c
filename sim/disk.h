// Disk: the folder of snapshots that all hosts share. It outlives every process, and power cuts.
// What is on it is checked with each change.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/checkers.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::sim {

// What one rank has to give for a snapshot.
struct SnapshotPart {
  Version version = kNoVersion;
  std::uint64_t content = 0;
  Generation generation = 0;  // In which it was copied.
};

class Disk {
 public:
  struct Folder {
    std::map<Rank, SnapshotPart> parts;
    Version version = 0;
    std::uint64_t number = 0;  // Counts the snapshots in the order in which they became whole.
    bool is_whole = false;
    bool is_damaged = false;  // It became unreadable, for good.
  };

  void write(const std::string& name, Rank rank, const SnapshotPart& part) {
    folders_[name].parts[rank] = part;
  }
  // The folder becomes a snapshot.
  void name(const wire::Snapshot& order, Rank ranks, Checkers& checkers);
  // `loaded`: the snapshot with which the job begins again; empty: with none.
  void remove(const std::string& name, const std::string& loaded, Checkers& checkers);
  [[nodiscard]] Folder* find(const std::string& name);  // Null: there is none.

  void damage(Folder& folder) { folder.is_damaged = is_any_damaged_ = true; }
  [[nodiscard]] bool is_any_damaged() const { return is_any_damaged_; }

  // What a new run may begin with: the newest first, and each older than the one before.
  [[nodiscard]] std::vector<wire::SnapshotName> whole() const;
  // The greatest version of those that are whole and readable; 0: none is.
  [[nodiscard]] Version readable(const std::vector<wire::SnapshotName>& of) const;
  [[nodiscard]] std::uint64_t named() const { return named_; }

 private:
  std::map<std::string, Folder> folders_;
  std::uint64_t named_ = 0;
  bool is_any_damaged_ = false;
};

}  // namespace holdfast::sim
