#include "apps/python/launcher.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "os/program.h"
#include "os/random_bits.h"

namespace holdfast::apps {
namespace {

// Device and inode of the log, by which a process can tell which of its outputs is the log
// (holdfast/_output.py). Not the name: another file may get that later. Empty: there is no log.
std::string identity_of(const std::string& log) {
  struct stat about {};
  if (::stat(log.c_str(), &about) != 0) return {};
  return cat(about.st_dev, ':', about.st_ino);
}

// The path of the program `nursling`, which asks the fork server. It lies beside this program.
std::string nursling() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).parent_path() / "nursling";
}

}  // namespace

PythonLauncher::PythonLauncher(Forked forked) : forked_(forked) {}

Result<runtime::Words> PythonLauncher::command(runtime::Words program,
                                               const std::string& path) const {
  if (program.front().ends_with(".py")) {
    if (::access(program.front().c_str(), R_OK) != 0) {
      return Error{Blame::kUser, cat("there is no readable program ", program.front())};
    }
    // -u: unbuffered, so that the log has all output of a process that is killed.
    program.insert(program.begin(), {"python3", "-u"});
  }
  auto found = Launcher::command(std::move(program), path);
  if (!found || forked_ == Forked::kNone) return found;
  const std::string address = cat("holdfast-nursery-", os::random_bits(), '-', os::random_bits());
  found->insert(found->begin(), {nursling(), address, forked_ == Forked::kAll ? "all" : "first"});
  return Launcher::command(std::move(*found), path);
}

void PythonLauncher::tell(runtime::Words& environment, const runtime::Start& start) const {
  runtime::set(environment, "HOLDFAST_PYTHON_LOG", identity_of(start.output));
  runtime::set(environment, "HOLDFAST_PYTHON_PREDECESSOR", start.predecessor);
}

runtime::Words PythonLauncher::stack_command(pid_t pid, const runtime::Words& environment) const {
  std::string name = runtime::value_of(environment, "HOLDFAST_PY_SPY");
  if (name.empty()) name = "py-spy";
  auto found = os::find_program(name, runtime::value_of(environment, "PATH"));
  if (!found) return Launcher::stack_command(pid, environment);
  return {*std::move(found), "dump", "--pid", cat(pid)};
}

// Of `Thread 1304 (active+gil): "MainThread"`, the lines that follow: "    wait
// (threading.py:327)".
std::string PythonLauncher::stack_in(std::string_view printed) const {
  const auto main = printed.find(": \"MainThread\"\n");
  if (main == std::string_view::npos) return Launcher::stack_in(printed);
  const auto head = printed.substr(0, main);
  const bool has_gil = head.substr(head.rfind('\n') + 1).find("gil") != std::string_view::npos;
  std::string_view lines = printed.substr(printed.find('\n', main) + 1);
  std::string stack;
  for (int frames = 0; frames < runtime::kFramesSaid && lines.starts_with("    "); ++frames) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    stack += cat(stack.empty() ? "" : " < ", line.substr(4));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  return cat(stack, has_gil ? " (it holds Python's GIL)" : "");
}

}  // namespace holdfast::apps
