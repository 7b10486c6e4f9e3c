// Inspector: finds out what a process does, without its help: from /proc, and by a program that
// prints stacks (Launcher::stack_command). It looks at each process in a thread of its own, which
// may wait for a disk that does not answer: the agent does not wait for it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "core/agent/events.h"
#include "io/loop.h"
#include "runtime/agent/launcher.h"

namespace holdfast::runtime {

class Inspector {
 public:
  struct Subject {
    agent::Process process = 0;
    pid_t pid = 0;
    Words environment;   // As for Launcher::stack_command.
    std::string output;  // A file for what that program prints; it is removed.
    std::string log;     // Gets all that the program has printed, after what this job had there.
  };

  Inspector(io::Loop& loop, std::shared_ptr<const Launcher> launcher,
            std::function<void(agent::Inspected)> on_done);
  ~Inspector();  // What is under way goes on, and tells nobody.
  Inspector(const Inspector&) = delete;
  Inspector& operator=(const Inspector&) = delete;

  void begin(Subject subject);

 private:
  struct Shared {  // With the threads.
    std::mutex mutex;
    io::Loop* loop = nullptr;  // Null: the Inspector is gone.
    std::function<void(agent::Inspected)> on_done;
  };

  std::shared_ptr<const Launcher> launcher_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::set<std::string> logs_;  // Those that this job has begun.
};

}  // namespace holdfast::runtime
