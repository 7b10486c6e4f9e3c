// Small helpers for files and folders. Thread-safe; errors name the path.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "os/fd.h"

namespace holdfast::os {

// The folder part of a path; "." if it has none.
std::string folder_of(const std::string& path);

// Makes the folder and all missing folders above it, with `mode`. Leaves a folder that exists as it
// is.
Status make_directories(const std::string& path, mode_t mode = 0700);

// Removes the file or folder `path` with all in it. Removes nothing unless `path` lies strictly
// beneath `prefix`, and both are absolute and without "." or "..". Never follows a link out of
// `prefix`. It is no error if nothing is there.
Status remove_tree(const std::string& path, const std::string& prefix);

// False: errno says why.
[[nodiscard]] bool write_all(int fd, std::string_view bytes);

Result<std::string> read_file(const std::string& path);

// A reader finds the old bytes or the new ones, never a part of them, even if this process dies
// meanwhile. The file and its folder are synced, so a power loss changes nothing either.
Status write_file_atomically(const std::string& path, std::string_view bytes, mode_t mode = 0600);

// The same for a file that is locked, as by lock_file(), before it gets its name. So nobody finds
// it unlocked. The descriptor holds the lock, if the file system has locks.
Result<Fd> write_locked_file(const std::string& path, std::string_view bytes, mode_t mode = 0600);

// Locks a file until the descriptor is closed or this process has ended. Empty if another process
// holds the lock, or if there can be none.
Fd lock_file(const std::string& path);

// Waits until no other process holds the folder's lock, and takes it. Empty if there can be none.
Fd lock_folder(const std::string& path);

// Whether any process holds the file's lock. This tells of processes in other PID namespaces too.
bool is_locked(const std::string& path);

// The bytes of a file from byte `from` on, at most its last 64 KiB. Empty if it can not be read.
std::string end_of(const std::string& path, std::uint64_t from);

// The last `lines` lines of a file, at most 64 KiB. Empty if it can not be read.
std::string tail(const std::string& path, std::size_t lines);

// The sorted names of all that is in a folder. Empty if it can not be read.
std::vector<std::string> names_in(const std::string& folder);

}  // namespace holdfast::os
