// Launcher: how the program of a job is started, and what is known of programs of its kind.
//
// This base class executes the program and knows nothing about it. A plug-in for a kind of programs
// derives from it (apps/python).
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace holdfast::runtime {

using Words = std::vector<std::string>;

// Functions on an environment, which is Words of the form NAME=value. value_of() returns "" for a
// variable that is not set.
[[nodiscard]] std::string value_of(const Words& environment, std::string_view name);
void unset(Words& environment, std::string_view name);
void set(Words& environment, std::string_view name, std::string_view value);

// A process that is about to be started.
struct Start {
  std::string output;  // The file of its stdout and stderr.
  // How the place's last process ended (agent::Predecessor), in words; empty: there was none.
  std::string predecessor;
};

// How many frames of a stack stand in a sentence.
inline constexpr int kFramesSaid = 8;

class Launcher {
 public:
  Launcher() = default;
  virtual ~Launcher() = default;
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // The words to execute for `program`, which is a name or path with its arguments. The first word
  // is a path. `path`: the variable PATH. Errors: there is no such program.
  [[nodiscard]] virtual Result<Words> command(Words program, const std::string& path) const;
  // Adds variables for the process to those of the settings, as NAME=value.
  virtual void tell(Words& /*environment*/, const Start& /*of*/) const {}
  // Whether the agent's child is only a stand-in: another process, in the child's group, runs the
  // program, and the child ends with the same code or signal as that process.
  [[nodiscard]] virtual bool stands_in() const { return false; }
  // Why a process ended, found in the last words of its output. Empty: not found.
  [[nodiscard]] virtual std::string reason(std::string_view /*words*/) const { return {}; }
  // Whether this reason is a refusal by Holdfast itself, which would end every further process,
  // too.
  [[nodiscard]] virtual bool is_final(std::string_view /*reason*/) const { return false; }
  // The words of a command that prints the stack of a process of this kind, without its help;
  // empty: none is installed. `environment`: that of the job's processes.
  [[nodiscard]] virtual Words stack_command(pid_t pid, const Words& environment) const;
  // The innermost frames in what that command has printed, for a sentence; empty: none.
  [[nodiscard]] virtual std::string stack_in(std::string_view printed) const;
};

}  // namespace holdfast::runtime
