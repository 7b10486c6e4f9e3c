#include "os/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>

#include "base/assert.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/files.h"

namespace holdfast::os {
namespace {

constexpr std::uint64_t kExiting = 0x4;  // PF_EXITING, include/linux/sched.h

struct Stat {
  char state = '?';
  std::uint64_t flags = 0;
  std::uint64_t start_time = 0;
};

bool says_gone(int error_number) {
  return error_number == ENOENT || error_number == ESRCH;
}

std::optional<Stat> parse(std::string_view text) {
  // Field 2, the name, stands in brackets and may hold anything. So the fields are read after the
  // last bracket.
  const std::size_t bracket = text.rfind(')');
  if (bracket == std::string_view::npos || bracket + 2 >= text.size()) return std::nullopt;
  Stat stat;
  const std::string_view rest = text.substr(bracket + 2);
  stat.state = rest[0];
  std::size_t at = 0;
  for (int field = 3; at < rest.size(); ++field) {
    const std::size_t end = std::min(rest.find(' ', at), rest.size());
    std::uint64_t* wanted = field == 9 ? &stat.flags : field == 22 ? &stat.start_time : nullptr;
    if (wanted != nullptr) std::from_chars(rest.data() + at, rest.data() + end, *wanted);
    if (field == 22) return stat;
    at = end + 1;
  }
  return std::nullopt;
}

struct Look {
  bool gone = false;
  std::optional<Stat> stat;  // nullopt: the process is gone, or can not be looked at just now.
};

// `path`: /proc/<pid>/stat, or that of a thread.
Look look_at(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : -1;
  if (got < 0) return {says_gone(errno), std::nullopt};
  return {false, parse({text.data(), static_cast<std::size_t>(got)})};
}

Look look_at(pid_t pid) {
  return look_at(cat("/proc/", pid, "/stat"));
}

}  // namespace

// The kernel is asked: glibc has these two since 2.30 and 2.36, and a wheel may meet an older one.
pid_t this_thread() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

Fd open_process(pid_t pid) {
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

Status send_signal(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0 || errno == ESRCH) return {};
  return system_error(cat("cannot send signal ", signal), errno);
}

Status signal_group(pid_t leader, int signal) {
  HF_ASSERT(leader > 1);  // 0 would mean this process's own group, and 1 all processes.
  if (::kill(-leader, signal) == 0 || errno == ESRCH) return {};
  return system_error(cat("cannot send signal ", signal, " to the processes of ", leader), errno);
}

bool is_exiting(pid_t pid) {
  const std::string tasks = cat("/proc/", pid, "/task");
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(tasks.c_str()), &::closedir);
  if (!folder) return says_gone(errno);
  // One thread that is not exiting settles it, since it could start others. New threads come last
  // in the list.
  while (const dirent* entry = ::readdir(folder.get())) {
    if (entry->d_name[0] == '.') continue;
    const auto [gone, stat] = look_at(cat(tasks, '/', entry->d_name, "/stat"));
    if (!gone && (!stat || (stat->flags & kExiting) == 0)) return false;
  }
  return true;
}

std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> found;
  for (const auto& name : names_in(folder)) {
    const pid_t number = std::atoi(name.c_str());
    if (number > 0) found.push_back(number);
  }
  return found;
}

std::vector<pid_t> members_of(pid_t group) {
  std::vector<pid_t> members = {group};
  for (const pid_t pid : numbers_in("/proc")) {
    if (pid != group && ::getpgid(pid) == group) members.push_back(pid);
  }
  return members;
}

std::uint64_t processor_time(pid_t pid) {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(used.tv_nsec);
}

bool is_stopped(pid_t pid) {
  const auto stat = look_at(pid).stat;
  return stat && stat->state == 'T';
}

char state_of(pid_t pid) {
  const auto stat = look_at(pid).stat;
  return stat ? stat->state : '?';
}

std::string sleeps_in(pid_t pid) {
  const Fd file(::open(cat("/proc/", pid, "/wchan").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : -1;
  const std::string name(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  return name == "0" ? "" : name;
}

std::optional<std::uint64_t> stopped_at(pid_t pid) {
  return is_stopped(pid) ? std::optional(processor_time(pid)) : std::nullopt;
}

std::optional<std::uint64_t> start_time(pid_t pid) {
  const auto stat = look_at(pid).stat;
  if (!stat) return std::nullopt;
  return stat->start_time;
}

bool same_process_alive(pid_t pid, std::uint64_t start_time) {
  const auto [gone, stat] = look_at(pid);
  if (!stat) return !gone;
  if (stat->start_time != start_time) return false;
  // A zombie whose other threads live on has only lost its first thread.
  return (stat->state != 'Z' && stat->state != 'X') || !is_exiting(pid);
}

std::optional<std::uint64_t> pid_namespace(pid_t pid) {
  std::array<char, 32> self{};
  if (::readlink("/proc/self", self.data(), self.size() - 1) < 0) return std::nullopt;
  if (cat(::getpid()) != self.data()) return std::nullopt;
  struct stat about {};
  const std::string path = cat("/proc/", pid > 0 ? pid : ::getpid(), "/ns/pid");
  if (::stat(path.c_str(), &about) != 0) return std::nullopt;
  return about.st_ino;
}

}  // namespace holdfast::os
