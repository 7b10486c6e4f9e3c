#include "os/errors.h"

#include <cerrno>
#include <string>

#include "base/text.h"

namespace holdfast::os {
namespace {

// A hint at what to do if the system lacks something. It follows the system's own words, and is
// empty if these say enough.
std::string_view error_hint(int error_number) {
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

}  // namespace

Error system_error(std::string_view what, int error_number) {
  return system_error(what, std::error_code(error_number, std::system_category()));
}

Error system_error(std::string_view what, const std::error_code& code) {
  return Error{Blame::kWorld, cat(what, ": ", code.message(), error_hint(code.value()))};
}

Error no_task(std::string_view what, int error_number) {
  Error error = system_error(what, error_number);
  if (error_number == EAGAIN) {
    error.what +=
        "; raise the limit of processes and threads: of this user (`ulimit -u`), of the container "
        "(its cgroup's pids.max) or of this host (sysctl kernel.pid_max, kernel.threads-max)";
  }
  return error;
}

std::string last_system_error() {
  return std::generic_category().message(errno);
}

}  // namespace holdfast::os
