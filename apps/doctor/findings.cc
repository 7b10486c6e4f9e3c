#include "apps/doctor/findings.h"

#include <cstdio>

#include "base/text.h"
#include "os/shared_file.h"

namespace holdfast::apps::doctor {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
// What jobs with models of some hundred megabytes need. Docker gives 64 MiB.
constexpr std::uint64_t kUsualShared = 1024 * kMiB;
constexpr std::uint64_t kLeastShared = 16 * kMiB;  // Of a job with the smallest model.
constexpr std::uint64_t kUsualDescriptors = 1024;

std::string size_of(std::uint64_t bytes) {
  char text[40];
  const double mib = static_cast<double>(bytes) / static_cast<double>(kMiB);
  std::snprintf(text, sizeof text, mib < 1024 ? "%.0f MiB" : "%.1f GiB",
                mib < 1024 ? mib : mib / 1024);
  return text;
}

Finding kernel(const Host& host) {
  const std::string what = cat("Linux ", host.kernel, " on ", host.machine);
  if (host.unwatched.empty()) return {Level::kGood, what, ""};
  return {Level::kBad, cat(what, ": processes can not be watched (", host.unwatched, ")"),
          "Holdfast needs Linux 5.4 or later, and a container whose seccomp profile allows "
          "pidfd_open and waitid"};
}

Finding processors(const Host& host) {
  std::string what = counted(host.processors, "processor");
  if (!host.quota || *host.quota >= host.processors) return {Level::kGood, what, ""};
  char text[40];
  std::snprintf(text, sizeof text, "%.1f", *host.quota);
  return {Level::kNote, cat(what, ", of whose time the control group gives ", text),
          "start no more ranks than that"};
}

Finding memory(const Host& host) {
  std::string what = cat("memory: ", size_of(host.memory), " available");
  if (host.memory_limit)
    what += cat(", the control group's limit is ", size_of(*host.memory_limit));
  if (host.memory_limit && host.shared_bytes > *host.memory_limit) {
    return {
        Level::kNote,
        cat(what, ", and ", host.runtime_folder, " may hold ", size_of(host.shared_bytes)),
        "what is in there counts as memory of the group: a job that needs more than the limit is "
        "killed"};
  }
  return {Level::kGood, what, ""};
}

Finding shared_memory(const Host& host) {
  const std::string& folder = host.runtime_folder;
  const std::string what =
      cat(folder, ": ", size_of(host.shared_free), " free of ", size_of(host.shared_bytes));
  if (folder != "/dev/shm") {
    return {Level::kNote, cat("/dev/shm can not be written to; in its place ", what),
            "the memory of jobs is in files of a disk there, and slow: mount a tmpfs at /dev/shm"};
  }
  const std::string need =
      cat("a rank takes about three times the size of its parameters and optimizer state there. "
          "Give more: ",
          os::kMoreRoom);
  if (host.shared_free < kLeastShared) return {Level::kBad, what, need};
  if (host.shared_free < kUsualShared) return {Level::kNote, what, need};
  return {Level::kGood, what, ""};
}

Finding jobs(const Host& host) {
  const std::string what = cat("jobs of this user here: ", host.living_jobs);
  if (host.dead_jobs == 0) return {Level::kGood, what, ""};
  return {Level::kNote, cat(what, "; folders of dead ones, which take up memory: ", host.dead_jobs),
          "`holdfast clean` removes them (--dry-run shows them)"};
}

Finding port(const Host& host) {
  if (host.port_taken.empty()) {
    return {Level::kGood, cat("port ", host.port, " of the scheduler is free"), ""};
  }
  return {Level::kNote,
          cat("port ", host.port, " of the scheduler can not be had: ", host.port_taken),
          "give msrun another --master_port (`holdfast run` draws a free one)"};
}

Finding stacks(const Host& host) {
  if (!host.python_stacks.empty()) {
    return {Level::kGood, cat("stacks of ranks that hang: by ", host.python_stacks), ""};
  }
  return {Level::kNote,
          cat("a rank of Python that hangs is named without its stack: there is no py-spy",
              host.native_stacks.empty() ? "" : " (native ones: by eu-stack)"),
          "pip install py-spy"};
}

void limits(const Host& host, std::vector<Finding>& all) {
  const std::string what = cat("open files: ", host.descriptors);
  const bool few = host.descriptors < kUsualDescriptors;
  all.push_back({few ? Level::kNote : Level::kGood, what,
                 few ? "the scheduler takes one for each process of the job: ulimit -n 4096" : ""});
  if (host.file_size) {
    all.push_back({Level::kBad, cat("files may have ", size_of(*host.file_size), " at most"),
                   "the memory of a job is in files of /dev/shm: ulimit -f unlimited"});
  }
  if (!host.can_undo_idle) {
    all.push_back({Level::kNote,
                   "this user may not give a process a lower priority and take that "
                   "back",
                   "a starting spare then takes processor time from the training: ulimit -e 20 "
                   "(docker run --ulimit nice=20)"});
  }
}

void settings(const Host& host, std::vector<Finding>& all) {
  if (!host.wrong_setting.empty()) {
    all.push_back({Level::kBad, host.wrong_setting, ""});
  }
  for (const auto& one : host.without_effect) all.push_back({Level::kNote, one, ""});
  std::string names;
  for (const auto& name : host.set) names += cat(names.empty() ? "" : ", ", name);
  if (!names.empty())
    all.push_back({Level::kGood, cat("settings in the environment: ", names), ""});
}

}  // namespace

std::vector<Finding> judge(const Host& host) {
  std::vector<Finding> all = {kernel(host), processors(host), memory(host), shared_memory(host)};
  limits(host, all);
  for (const auto& one : {jobs(host), port(host), stacks(host)}) all.push_back(one);
  for (const auto& one : host.left_alone) all.push_back({Level::kNote, one, ""});
  settings(host, all);
  return all;
}

}  // namespace holdfast::apps::doctor
