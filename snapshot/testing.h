// For tests: small shards and snapshots.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "os/testing.h"
#include "snapshot/folder.h"
#include "snapshot/shard.h"

namespace holdfast::snapshot::testing {

template <class T>
std::string why_not(const Result<T>& result) {
  return result ? "" : result.error().what;
}
inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string text_of(const Shard& shard, const std::string& tensor) {
  const Shard::Tensor* found = shard.find(tensor);
  if (found == nullptr) return "(no such tensor)";
  std::string text(found->bytes, '\0');
  const Status read = shard.read(*found, std::as_writable_bytes(std::span(text)));
  return read ? text : read.error().what;
}

// A shard of two tensors, that says whose it is.
inline Status write_small(const std::string& path, Rank rank, const std::string& word) {
  const std::string parameters = cat("parameters of ", rank, ", ", word);
  const std::string moments = cat("moments ", word);
  const Piece pieces[]{{"parameters", bytes_of(parameters)}, {"moments", bytes_of(moments)}};
  return write_shard(path, {{"rank", cat(rank)}, {"word", word}}, pieces);
}

inline Manifest manifest_of(Version version, std::vector<File> files) {
  return {.job = "digits",
          .run_id = 0xfedcba9876543210U,
          .version = version,
          .world_size = static_cast<std::int32_t>(files.size()),
          .servers = 0,
          .program = "python train.py",
          .unix_ms = 1'700'000'000'000 + static_cast<std::int64_t>(version),
          .files = std::move(files),
          .release = "0.1.0"};
}

// Writes a whole snapshot of `ranks` ranks.
inline Status snap(const std::string& dir, const std::string& name, Version version,
                   Rank ranks = 2) {
  const os::TemporaryFolder memory("/dev/shm");
  std::vector<File> files;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const std::string from = memory / cat("shard-", rank);
    if (Status written = write_small(from, rank, cat("version ", version)); !written)
      return written;
    const auto file = store_shard(from, dir, name, rank);
    if (!file) return file.error();
    files.push_back(*file);
  }
  return name_snapshot(dir, name, manifest_of(version, files));
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace holdfast::snapshot::testing
