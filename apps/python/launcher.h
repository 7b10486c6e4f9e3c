// PythonLauncher: all that the agent knows about Python programs.
//
// A script (.py) is run by python3. A process is told, by its environment, which of its outputs is
// its log, and which process it replaces. The reason of its end is its last exception. With a fork
// server, a process is forked from one that has imported the framework already
// (apps/python/nursling.cc).
#pragma once

#include <string>
#include <string_view>

#include "runtime/agent/launcher.h"

namespace holdfast::apps {

// The exception that ended a Python program, from the last traceback in what it has written:
// "ValueError: no data". Addresses are left out, because they differ between processes. Empty if
// there is no traceback, or if the exception tells of another process's end.
[[nodiscard]] std::string last_exception(std::string_view words);

// Which workers are forked; the others are started as if there were no fork server.
enum class Forked { kNone, kAll, kFirst };  // kFirst: those that replace no other process.

class PythonLauncher final : public runtime::Launcher {
 public:
  explicit PythonLauncher(Forked forked);

  [[nodiscard]] Result<runtime::Words> command(runtime::Words program,
                                               const std::string& path) const override;
  void tell(runtime::Words& environment, const runtime::Start& start) const override;
  [[nodiscard]] bool stands_in() const override { return forked_ != Forked::kNone; }
  [[nodiscard]] std::string reason(std::string_view words) const override {
    return last_exception(words);
  }
  [[nodiscard]] bool is_final(std::string_view reason) const override {
    return reason.starts_with("holdfast._errors.UserError:");
  }
  // By py-spy: HOLDFAST_PY_SPY, else that of PATH. Without it, by what is used for all programs.
  [[nodiscard]] runtime::Words stack_command(pid_t pid,
                                             const runtime::Words& environment) const override;
  [[nodiscard]] std::string stack_in(std::string_view printed) const override;

 private:
  const Forked forked_;
};

}  // namespace holdfast::apps
