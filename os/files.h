// Small helpers for files and folders. Thread-safe; errors name the path.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::os {

// The folder part of a path; "." if it has none.
std::string folder_of(const std::string& path);

// Makes the folder and all missing folders above it, with `mode`. Leaves a folder that exists as it
// is.
Status make_directories(const std::string& path, mode_t mode = 0700);

// A file by its path, or by its name in an open folder.
struct FileName {
  FileName(std::string whole) : path(std::move(whole)) {}  // NOLINT: implicit
  FileName(int above, const std::string& path_above, const std::string& last)
      : folder(above), name(last), path(path_above + '/' + last) {}

  [[nodiscard]] const std::string& in_folder() const { return name.empty() ? path : name; }

  int folder = AT_FDCWD;
  std::string name;  // Within `folder`; empty: `path` is used.
  std::string path;  // The whole path, for messages.
};

// Opens a file that this user's processes make for themselves, like all files in a job's folder.
// Empty if nothing has this name. Follows no link at its end. Errors: it is no plain file of this
// user, or it has a second name (a hard link). O_CREAT makes it with mode 0600.
Result<Fd> open_own_file(const FileName& name, int flags);

// Writes all bytes. False: errno says why.
[[nodiscard]] bool write_all(int fd, std::string_view bytes);
// Fills `to` with the bytes of a file from `offset` on. False: errno says why; 0: the file ends
// before.
[[nodiscard]] bool read_at(int fd, std::uint64_t offset, std::span<std::byte> to);

Result<std::string> read_file(const std::string& path);
// The rest of an open file. Errors name it `path`.
Result<std::string> read_rest(const Fd& file, const std::string& path);

// Writes all bytes at `offset`. False: errno says why.
[[nodiscard]] bool write_at(int fd, std::uint64_t offset, std::span<const std::byte> bytes);

// A reader finds the old bytes or the new ones, never a part of them, even if this process dies
// meanwhile. The file and its folder are synced, so a power loss changes nothing either.
Status write_file_atomically(const std::string& path, std::string_view bytes, mode_t mode = 0600);

// Makes the names in a folder durable.
[[nodiscard]] Status sync_folder(const std::string& path);

// write_file_atomically() for a file that is locked (flock) before it gets its name. So nobody
// finds it unlocked. The descriptor holds the lock, if the file system has locks.
Result<Fd> write_locked_file(const FileName& name, std::string_view bytes, mode_t mode = 0600);

// The bytes of a file from byte `from` on, at most its last 64 KiB. Empty if it can not be read.
std::string end_of(const std::string& path, std::uint64_t from);

// The last `lines` lines of a file, at most 64 KiB. Empty if it can not be read.
std::string tail(const std::string& path, std::size_t lines);

// How many bytes are free on the file system of a path; 0 if that can not be told.
std::uint64_t free_bytes(const std::string& path);

// Has the disk bring a part of a file into the page cache, as far as the kernel heeds that.
void read_ahead(int file, std::uint64_t at, std::uint64_t bytes);

// The sorted names of all that is in a folder. Empty if it can not be read.
std::vector<std::string> names_in(const std::string& folder);

}  // namespace holdfast::os
