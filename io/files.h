// Small helpers for files and folders. Thread-safe; errors name the path.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/fd.h"

namespace holdfast::io {

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

// The folder for what a job keeps on this host while it runs: /dev/shm/holdfast-<uid>/<job>, or
// beneath /tmp where /dev/shm is absent. Made with mode 0700 if missing; refused where someone else
// could have put it there. A job's name is letters, digits, '.', '_' and '-', at most 100, and
// starts with no '.'.
Result<std::string> runtime_directory(const std::string& job);

// This host's name; "localhost" where it has none. For people: two hosts may have the same, and it
// may change.
std::string host_name();

// Names what the processes of a job must share to meet in memory: this boot of the kernel, the file
// system behind runtime_directory(), and the numbers of processes. Two containers have the same
// where they share /dev/shm and the process namespace (docker's --ipc and --pid), and only there.
std::string shared_memory_name();

}  // namespace holdfast::io
