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

// The folder that a path names something in; "." for a bare name.
std::string folder_of(const std::string& path);

// Makes the folder and those above it that are missing, these with `mode` too. One that is there is
// left as it is.
Status make_directories(const std::string& path, mode_t mode = 0700);

// Removes the file or folder `path` with all beneath. Requires that `path` lies strictly beneath
// `prefix`, both absolute and without "." or ".."; else nothing is removed. Never follows a link
// out. Nothing there is no error.
Status remove_tree(const std::string& path, const std::string& prefix);

Result<std::string> read_file(const std::string& path);

// A reader finds the old bytes or the new ones, never a part; so does one after this process's
// death. Durable against power loss too: the file and its folder are synced.
Status write_file_atomically(const std::string& path, std::string_view bytes, mode_t mode = 0600);

// Does that with a file that is locked, as by lock_file(), before it can be found at `path`: nobody
// finds it free. What is returned holds the lock, where there can be one.
Result<Fd> write_locked_file(const std::string& path, std::string_view bytes, mode_t mode = 0600);

// Locks a file, until what is returned is closed or this process has ended, however that comes.
// Empty where that can not be, or another process has it locked.
Fd lock_file(const std::string& path);

// Waits until no other process has the folder locked, and locks it likewise. Empty where that can
// not be.
Fd lock_folder(const std::string& path);

// Whether a process has it locked: also one of another PID namespace, of which nothing else can be
// known.
bool is_locked(const std::string& path);

// What stands in a file from byte `from` on (its last 64 KiB at most); empty where it can not be
// read.
std::string end_of(const std::string& path, std::uint64_t from);

// The last `lines` lines of a file, or fewer (at most 64 KiB are looked at); empty where it can not
// be read. For "the last words of its log are".
std::string tail(const std::string& path, std::size_t lines);

// The names of what is in a folder, in their order; empty where it can not be read.
std::vector<std::string> names_in(const std::string& folder);

}  // namespace holdfast::os
