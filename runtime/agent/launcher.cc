#include "runtime/agent/launcher.h"

#include "os/program.h"

namespace holdfast::runtime {

Result<Words> Launcher::command(Words program, const std::string& path) const {
  auto found = os::find_program(program.front(), path);
  if (!found) return found.error();
  program.front() = std::move(*found);
  return program;
}

}  // namespace holdfast::runtime
