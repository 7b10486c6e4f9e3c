// Inspector: finds out what a process does, without its help: from /proc, and by a program that
// prints stacks (Launcher::stack_command). It looks at one process in a thread of its own, for at
// most a second.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/agent/events.h"
#include "io/loop.h"
#include "runtime/agent/launcher.h"

namespace holdfast::runtime {

class Inspector {
 public:
  struct Subject {
    agent::Process process = 0;
    pid_t pid = 0;
    Words stack_command;  // Empty: no program prints stacks here.
    std::string output;   // A file for what that program prints; it is removed.
    std::string log;      // Is appended to: all that the program has printed.
  };

  Inspector(io::Loop& loop, std::shared_ptr<const Launcher> launcher,
            std::function<void(agent::Inspected)> on_done)
      : loop_(loop), launcher_(std::move(launcher)), on_done_(std::move(on_done)) {}
  ~Inspector();  // Waits for those that are under way.
  Inspector(const Inspector&) = delete;
  Inspector& operator=(const Inspector&) = delete;

  void begin(Subject subject);

 private:
  struct Look {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done = std::make_shared<std::atomic<bool>>(false);
  };

  [[nodiscard]] std::string report_on(const Subject& subject) const;

  io::Loop& loop_;
  std::shared_ptr<const Launcher> launcher_;
  std::function<void(agent::Inspected)> on_done_;
  std::vector<Look> looks_;
};

}  // namespace holdfast::runtime
