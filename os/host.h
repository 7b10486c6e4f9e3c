// This host: its name, and where on it the processes of a job meet in memory.
#pragma once

#include <string>

#include "base/result.h"
#include "os/folder.h"

namespace holdfast::os {

// The folder for what a job keeps on this host while it runs: /dev/shm/holdfast-<uid>/<job>, or the
// same beneath /tmp if there is no /dev/shm. It is made with mode 0700 if it is missing, and
// refused if another user could have made it. A job's name has at most 100 letters, digits, '.',
// '_' and '-', and does not start with '.'.
Result<std::string> runtime_directory(const std::string& job);

// The path that runtime_directory() returns. Makes and checks nothing.
std::string runtime_path(const std::string& job);

// Opens a folder that runtime_directory() has returned, and checks it again. Empty if it is gone.
Result<Folder> open_runtime_directory(const std::string& path);

// This host's name for people, or "localhost". Two hosts may have the same name, and it may change.
std::string host_name();
// Names this boot of this host's kernel, from which CLOCK_MONOTONIC counts.
std::string boot_name();

// Whether `host` is the numeric address of another host than this one. A name is not looked up:
// false.
bool is_address_elsewhere(const std::string& host);

// The numeric address at this end of a connected socket; empty: it has none.
std::string local_address(int socket);
// The numeric address of this host from which it would reach `host`, an address or a name. Sends
// nothing. Empty: it can not be reached.
std::string address_towards(const std::string& host);
// Whether a numeric address is a loopback address, which only this host itself can reach.
bool is_loopback(const std::string& address);

// Names what processes must share in order to meet in memory: first boot_name(), then the file
// system behind runtime_directory(), and the PID namespace. Two containers have the same name only
// if they share /dev/shm and the PID namespace (docker's --ipc and --pid).
std::string shared_memory_name();

}  // namespace holdfast::os
