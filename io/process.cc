#include "io/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "io/errors.h"
#include "io/loop_impl.h"

namespace holdfast::io {
namespace {

// Where someone else has reaped the child, nobody knows any more.
constexpr Exit kUnknown{255, 0};

// Nothing while it still runs, unless `flags` say to wait.
std::optional<Exit> reap(int pidfd, int flags) {
  siginfo_t info{};
  int result = 0;
  do {
    result = ::waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | flags);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return kUnknown;
  if (info.si_pid == 0) return std::nullopt;
  if (info.si_code == CLD_EXITED) return Exit{info.si_status, 0};
  return Exit{0, info.si_status};
}

struct Watch : std::enable_shared_from_this<Watch> {
  Watch(Loop& loop, int fd) : descriptor(loop.impl().context, fd) {}
  void wait() {
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const std::error_code& error) {
                            if (error) return;
                            const auto exit = reap(self->descriptor.native_handle(), WNOHANG);
                            if (!exit) return self->wait();
                            self->on_exit(*exit);
                          });
  }
  asio::posix::stream_descriptor descriptor;
  std::function<void(Exit)> on_exit;
};

bool is_folder(const std::string& path) {
  struct stat about {};
  return ::stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

// The kernel says of a script whose interpreter is not there that the script itself is not.
Result<std::string> with_interpreter(const std::string& script) {
  std::ifstream file(script);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("#!")) return script;
  const auto start = std::min(line.find_first_not_of(" \t", 2), line.size());
  const auto name = line.substr(start, line.find_first_of(" \t", start) - start);
  const bool dos = line.ends_with('\r');  // An argument with it is no better: `env python3\r`.
  if (name.empty() || (!dos && ::access(name.c_str(), X_OK) == 0)) return script;
  return Error{Blame::kUser,
               dos ? cat(script,
                         " has line ends of Windows, so that its interpreter is not found; "
                         "take the carriage returns out (`sed -i 's/\\r$//'`)")
                   : cat(script, " is a script for ", name,
                         ", which is not there or not executable; check its first line")};
}

}  // namespace

std::string describe(const Exit& exit) {
  if (exit.signal == 0) return cat("exited with code ", exit.code);
  const char* name = ::sigabbrev_np(exit.signal);
  if (name == nullptr) return cat("was killed by signal ", exit.signal);
  // A limit that the user has met ends a process without a word of its own.
  const char* why = exit.signal == SIGXFSZ   ? ": a file grew beyond the limit of `ulimit -f`"
                    : exit.signal == SIGXCPU ? ": its processor time met the limit of `ulimit -t`"
                                             : "";
  return cat("was killed by signal ", exit.signal, " (SIG", name, why, ")");
}

void watch(Loop& loop, int pidfd, std::function<void(Exit)> on_exit) {
  loop.impl().check_thread();
  const int copy = ::fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) throw std::system_error(errno, std::system_category());
  const auto watch = std::make_shared<Watch>(loop, copy);
  watch->on_exit = std::move(on_exit);
  watch->wait();
}

Result<Exit> wait_for(int pidfd) {
  const auto exit = reap(pidfd, 0);
  HF_ASSERT(exit.has_value());
  return *exit;
}

Status send_signal(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0 || errno == ESRCH) return {};
  return system_error(cat("cannot send signal ", signal), errno);
}

Status signal_group(pid_t leader, int signal) {
  HF_ASSERT(leader > 1);  // 0 and 1 would mean quite other processes.
  if (::kill(-leader, signal) == 0 || errno == ESRCH) return {};
  return system_error(cat("cannot send signal ", signal, " to the processes of ", leader), errno);
}

Result<std::string> find_program(const std::string& name, std::string_view path) {
  const auto fits = [](const std::string& file) {
    return ::access(file.c_str(), X_OK) == 0 && !is_folder(file);
  };
  const auto refuse = [](const std::string& file) {
    const char* why = is_folder(file) ? " is a folder, not a program; name the program in it"
                                      : " is not executable; try `chmod +x`";
    return Error{Blame::kUser, file + why};
  };
  if (name.find('/') != std::string::npos) {
    if (fits(name)) return with_interpreter(name);
    if (::access(name.c_str(), F_OK) == 0) return refuse(name);
    return Error{Blame::kUser, cat("there is no program ", name, "; check the path")};
  }
  std::string found;  // The first that has the name but is no program.
  for (std::size_t start = 0; !name.empty() && start <= path.size();) {
    const std::size_t end = std::min(path.find(':', start), path.size());
    const std::string_view folder = path.substr(start, end - start);
    const std::string file = cat(folder.empty() ? "." : folder, '/', name);
    if (fits(file)) return with_interpreter(file);
    if (found.empty() && ::access(file.c_str(), F_OK) == 0) found = file;
    start = end + 1;
  }
  if (!found.empty()) return refuse(found);
  return Error{Blame::kUser, cat("there is no program '", name,
                                 "' in the folders of PATH; install it, or "
                                 "give its path (./",
                                 name, ")")};
}

}  // namespace holdfast::io
