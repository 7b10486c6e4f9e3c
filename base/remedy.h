// What to do where the system refuses for want of something: the limit, and how to raise it.
#pragma once

#include <cerrno>
#include <string_view>

namespace holdfast {

// To follow the system's own words; empty where they say all.
constexpr std::string_view remedy_of(int error_number) {
  switch (error_number) {
    case EMFILE:
      return "; raise the limit of open files of a process (`ulimit -n`)";
    case ENFILE:
      return "; raise this host's limit of open files (sysctl fs.file-max)";
    case ENOSPC:
    case EDQUOT:
      return "; free some room there";
    default:
      return {};
  }
}

// The same of what makes a process or a thread, where EAGAIN is a limit too.
constexpr std::string_view remedy_of_no_task(int error_number) {
  if (error_number != EAGAIN) return remedy_of(error_number);
  return "; raise the limit of processes and threads: of this user (`ulimit -u`), of the container "
         "(its cgroup's pids.max) or of this host (sysctl kernel.pid_max, kernel.threads-max)";
}

}  // namespace holdfast
