#include "apps/doctor/host.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>

#include "base/number.h"
#include "base/text.h"
#include "config/settings.h"
#include "config/without_effect.h"
#include "io/connection.h"
#include "io/loop.h"
#include "os/files.h"
#include "os/host.h"
#include "os/idle.h"
#include "os/process.h"
#include "os/program.h"
#include "os/shared_file.h"
#include "runtime/jobs/job_files.h"

namespace holdfast::apps::doctor {
namespace {

// Why a child could not be waited for by a descriptor; empty: it could. There is no child: the
// kernel refuses this process itself, by ECHILD if it knows the call.
std::string why_unwatched() {
  const os::Fd self = os::open_process(::getpid());
  if (!self) return cat("pidfd_open: ", std::strerror(errno));
  siginfo_t info{};
  const int done = ::waitid(P_PIDFD, static_cast<id_t>(self.get()), &info, WEXITED | WNOHANG);
  return done == 0 || errno == ECHILD ? "" : cat("waitid: ", std::strerror(errno));
}

// The least value that a file of this process's control group, or of one above it, has. `divide`:
// the file has a second number, by which the first is divided. Nothing: there is no limit.
std::optional<double> limit_of(const char* name, bool divide) {
  const auto groups = os::read_file("/proc/self/cgroup");
  std::istringstream lines(groups ? *groups : std::string());
  std::string group;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::/")) group = line.substr(3);
  }
  std::optional<double> least;
  while (!group.empty()) {
    const auto text = os::read_file(cat("/sys/fs/cgroup", group == "/" ? "" : group, '/', name));
    std::istringstream words(text ? *text : std::string());
    double value = 0;
    double by = 1;
    if (words >> value && (!divide || words >> by) && by > 0) {
      least = std::min(least.value_or(value / by), value / by);
    }
    group = group == "/" ? "" : std::max<std::string>(group.substr(0, group.rfind('/')), "/");
  }
  return least;
}

std::uint64_t available_memory() {
  const auto text = os::read_file("/proc/meminfo");
  std::istringstream lines(text ? *text : std::string());
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (line.starts_with(kName))
      return std::strtoull(line.c_str() + kName.size(), nullptr, 10) << 10;
  }
  return 0;
}

void look_at_memory(Host& host) {
  host.memory = available_memory();
  if (const auto limit = limit_of("memory.max", false)) {
    host.memory_limit = static_cast<std::uint64_t>(*limit);
  }
  host.runtime_folder = os::folder_of(os::folder_of(os::runtime_path("any")));
  const os::Room room = os::room_in(host.runtime_folder);
  host.shared_bytes = room.all;
  host.shared_free = room.free;
}

void look_at_limits(Host& host) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) host.descriptors = limit.rlim_cur;
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    host.file_size = limit.rlim_cur;
  }
  host.can_undo_idle = os::may_undo_idle();
}

void look_at_jobs(Host& host) {
  const auto found = runtime::jobs_on_this_host();
  host.left_alone = found.left_alone;
  for (const auto& job : found.jobs) ++(job.alive() ? host.living_jobs : host.dead_jobs);
}

void look_at_settings(Host& host, const char* const* environment) {
  if (const auto read = config::from_environment(environment); !read) {
    host.wrong_setting = read.error().what;
  }
  host.without_effect = config::without_effect(environment);
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (name.starts_with("HOLDFAST_") || name.starts_with("MS_")) host.set.emplace_back(name);
  }
  std::sort(host.set.begin(), host.set.end());
}

void look_at_stacks(Host& host, const char* const* environment) {
  std::string path;
  std::string py_spy = "py-spy";
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    const std::string_view value = entry.substr(std::min(name.size() + 1, entry.size()));
    if (name == "PATH") path = value;
    if (name == "HOLDFAST_PY_SPY" && !value.empty()) py_spy = value;
  }
  const auto found = [&](const std::string& name) {
    const auto program = os::find_program(name, path);
    return program ? *program : std::string();
  };
  host.python_stacks = found(py_spy);
  host.native_stacks = found("eu-stack");
}

}  // namespace

Host look(std::uint16_t port, const char* const* environment) {
  Host host;
  utsname names{};
  (void)::uname(&names);
  host.kernel = names.release;
  host.machine = names.machine;
  host.unwatched = why_unwatched();
  cpu_set_t set;
  host.processors = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  host.quota = limit_of("cpu.max", true);
  look_at_memory(host);
  look_at_limits(host);
  look_at_jobs(host);
  host.port = port;
  io::Loop loop;
  if (const auto listener = io::listen(loop, "127.0.0.1", port); !listener) {
    host.port_taken = listener.error().what;
  }
  look_at_stacks(host, environment);
  look_at_settings(host, environment);
  return host;
}

}  // namespace holdfast::apps::doctor
