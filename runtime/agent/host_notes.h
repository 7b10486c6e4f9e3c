// HostNotes: what the hosts of a job that has failed tell each other, once no scheduler is left.
// They do so by files in the folder of snapshots, which they share.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "os/folder.h"

namespace holdfast::runtime {

// What a host has of a rank that has its place there.
struct LeftState {
  Rank rank = kNoRank;
  Version version = kNoVersion;
  Version staged = kNoVersion;
  bool is_clean = true;  // false: pages of it are lost.
  Version loaded = 0;    // From a snapshot that is in the folder, as the last that was loaded.
  // The part of a snapshot that the host has written of it.
  struct Part {
    Version version = kNoVersion;  // kNoVersion: none.
    std::uint64_t bytes = 0;
    std::uint64_t digest = 0;
    std::uint64_t shared = 0;  // Arena::digest(): of what all ranks hold alike.
  } part = {};
};

class HostNotes {
 public:
  // `dir`: the folder of snapshots.
  static Result<HostNotes> open(const std::string& dir, std::uint64_t run_id);

  // This host's note, in place of its last one. To write it also makes the notes of other hosts
  // seen where a network's file system remembers for long what a folder had.
  [[nodiscard]] Status write(const std::vector<LeftState>& states) const;
  // All that is in the notes of all hosts. A note that makes no sense counts as none, and so does
  // one that nobody has written anew for a minute, as every host that is still there does.
  [[nodiscard]] std::vector<LeftState> read() const;
  // Removes this host's note; and the folder, once it has none.
  void remove() const;
  // Removes what hosts have left in `dir` some minutes ago.
  static void remove_old(const std::string& dir);

 private:
  [[nodiscard]] std::time_t written(const std::string& name) const;
  HostNotes(os::Folder folder, std::string own)
      : folder_(std::move(folder)), own_(std::move(own)) {}

  os::Folder folder_;
  std::string own_;  // The name of this host's note.
};

}  // namespace holdfast::runtime
