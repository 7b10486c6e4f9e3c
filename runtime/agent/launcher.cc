#include "runtime/agent/launcher.h"

#include <algorithm>

#include "base/text.h"
#include "os/program.h"

namespace holdfast::runtime {

std::string value_of(const Words& environment, std::string_view name) {
  for (const auto& entry : environment) {
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return {};
}

void unset(Words& environment, std::string_view name) {
  const std::string beginning = cat(name, '=');
  std::erase_if(environment, [&](const auto& entry) { return entry.starts_with(beginning); });
}

void set(Words& environment, std::string_view name, std::string_view value) {
  unset(environment, name);
  environment.push_back(cat(name, '=', value));
}

Result<Words> Launcher::command(Words program, const std::string& path) const {
  auto found = os::find_program(program.front(), path);
  if (!found) return found.error();
  program.front() = std::move(*found);
  return program;
}

// eu-stack -1: the main thread alone.
Words Launcher::stack_command(pid_t pid, const Words& environment) const {
  auto found = os::find_program("eu-stack", value_of(environment, "PATH"));
  if (!found) return {};
  return {*std::move(found), "-1", "-n", "64", "-p", cat(pid)};
}

// Lines such as "#1  0x00007eff966aed90 pthread_cond_wait - 1".
std::string Launcher::stack_in(std::string_view printed) const {
  std::string stack;
  for (int frames = 0; frames < kFramesSaid && !printed.empty();) {
    std::string_view line = printed.substr(0, printed.find('\n'));
    printed.remove_prefix(std::min(printed.size(), line.size() + 1));
    const auto address = line.find(" 0x");
    if (!line.starts_with('#') || address == std::string_view::npos) continue;
    const auto name = line.find(' ', address + 1);
    if (name == std::string_view::npos) continue;
    stack += cat(stack.empty() ? "" : " < ", line.substr(name + 1));
    ++frames;
  }
  return stack;
}

}  // namespace holdfast::runtime
