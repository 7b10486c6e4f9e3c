// Snapshots in a folder that all hosts of a job share. DIR/NAME has a shard for each rank,
// rank-R.safetensors, and manifest.json, which is written last and seals what it says. A folder
// without a manifest is no snapshot: it is being written, or was not finished.
//
// All that these functions have written is on the disk when they return, and a snapshot never has
// its manifest before all else is. Errors name the file or folder; kUser: it is damaged, or not
// what it should be.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "snapshot/shard.h"

namespace holdfast::snapshot {

// A shard in its place.
struct File {
  Rank rank = kNoRank;
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;  // Shard::digest().
  bool operator==(const File&) const = default;
};

struct Manifest {
  std::string job;
  std::uint64_t run_id = 0;
  Version version = 0;
  std::int32_t world_size = 0;  // Of all ranks, servers too, which are the last.
  std::int32_t servers = 0;
  std::string program;  // What the ranks run, in the caller's words.
  std::int64_t unix_ms = 0;
  std::vector<File> files;   // One for each rank; read_manifest() gives them in the ranks' order.
  std::string release = {};  // Of Holdfast, which made it. Empty: one that did not say so.
  bool operator==(const Manifest&) const = default;
};

// Whether a folder of a snapshot may have this name: 1 to 100 of 0-9, a-f and '-'. The functions
// below refuse all other names.
[[nodiscard]] bool is_name(const std::string& name);
[[nodiscard]] std::string path_of(const std::string& dir, const std::string& name, Rank rank);

// Copies the shard `from` to its place in DIR/NAME, and makes folders that are missing. Of its
// digests it checks that of the header only: who has made the shard has looked at each byte, and
// whoever loads it does. It is mapped, so it needs no other memory, however long it is, and little
// of the page cache. Requires: DIR/NAME has no manifest yet. Error: the shard's header or length is
// wrong, it could not be written, or not until `until`, which is looked at between blocks.
using Clock = std::chrono::steady_clock;
[[nodiscard]] Result<File> store_shard(const std::string& from, const std::string& dir,
                                       const std::string& name, Rank rank,
                                       Clock::time_point until = Clock::time_point::max());

// Writes the manifest: from here on it is a snapshot. Error: a file is not there, as in a folder
// that not all hosts share.
[[nodiscard]] Status name_snapshot(const std::string& dir, const std::string& name,
                                   const Manifest& manifest);

// Error: there is none; it is damaged; a file is not there, or not as long as it says; the folder
// is a link, another user's, or one that other users may write in.
[[nodiscard]] Result<Manifest> read_manifest(const std::string& dir, const std::string& name);

// A shard that is the one of the manifest. Its tensors are checked when they are read.
[[nodiscard]] Result<Shard> open_shard(const std::string& dir, const std::string& name,
                                       const File& file);

// Has the disk read a snapshot of at most `most` bytes before somebody loads it. A larger one might
// push out of the page cache what others need. Says nothing of what is wrong with it.
void read_ahead(const std::string& dir, const std::string& name, std::uint64_t most);

// Reads all, and compares all digests.
[[nodiscard]] Status verify(const std::string& dir, const std::string& name);

struct Found {
  std::string name;
  Manifest manifest;
};
struct Listing {
  std::vector<Found> whole;           // The newest first: by unix_ms, then by version.
  std::vector<std::string> half;      // Names of folders that have no manifest, and nothing else
                                      // than files of a snapshot.
  std::vector<std::string> unusable;  // A sentence for each that has a manifest.
};
// What is in DIR: nothing, if it is not there. Nothing that has another name is looked at. Reads no
// shard. Error: DIR can not be read.
[[nodiscard]] Result<Listing> find(const std::string& dir);

// Removes a snapshot, whole or half: its manifest first. No error if it is not there. Error: it has
// files that are not a snapshot's (nothing is removed), or is no folder of this user's own.
[[nodiscard]] Status remove(const std::string& dir, const std::string& name);

}  // namespace holdfast::snapshot
