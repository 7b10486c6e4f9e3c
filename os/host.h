// This host: its name, and where on it the processes of a job meet in memory.
#pragma once

#include <string>

#include "base/result.h"

namespace holdfast::os {

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

}  // namespace holdfast::os
