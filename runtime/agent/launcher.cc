#include "runtime/agent/launcher.h"

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

}  // namespace holdfast::runtime
