// Launcher: how the program of a job is started, and what is known of programs of its kind.
//
// This is the plain way: the program is executed, and nothing is known of it. A plug-in derives
// from it (apps/python).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace holdfast::runtime {

using Words = std::vector<std::string>;

// For an environment: Words that are NAME=value. Empty where the variable is not set.
[[nodiscard]] std::string value_of(const Words& environment, std::string_view name);
void unset(Words& environment, std::string_view name);
void set(Words& environment, std::string_view name, std::string_view value);

// A process that is about to be started.
struct Start {
  std::string output;       // The file of its stdout and stderr.
  std::string predecessor;  // Of its place; as in agent::Spawn.
};

class Launcher {
 public:
  Launcher() = default;
  virtual ~Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // What is executed for `program`, a name or path with its arguments. The first word is a path.
  // `path`: the variable PATH. Errors: there is no such program.
  [[nodiscard]] virtual Result<Words> command(Words program, const std::string& path) const;
  // Adds what a process is told beside the settings, as NAME=value.
  virtual void tell(Words& /*environment*/, const Start& /*of*/) const {}
  // True: a child only stands for the process that runs the program. That process is in the child's
  // process group, and the child ends as it ends.
  [[nodiscard]] virtual bool stands_in() const { return false; }
  // Why a process ended, by the last words of its output. Empty: they do not say.
  [[nodiscard]] virtual std::string reason(std::string_view /*words*/) const { return {}; }
  // Whether that reason would end any further process as well, since it is Holdfast's own refusal.
  [[nodiscard]] virtual bool is_final(std::string_view /*reason*/) const { return false; }
};

}  // namespace holdfast::runtime
