// AgentWatch: tells whether the agent of this process is gone. A process does not die with its
// agent if a wrapper (bash train.sh) stands between them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "config/settings.h"
#include "os/process.h"

namespace holdfast::runtime {

class AgentWatch {
 public:
  static constexpr Duration kEvery = std::chrono::seconds(1);  // How often to ask.

  // The value of HOLDFAST_AGENT that names this process, an agent. Empty if /proc does not tell.
  [[nodiscard]] static std::string words_for_this_process();

  explicit AgentWatch(const config::Settings& settings);

  // True also if the agent was gone before this process began. False if there is no agent, or if it
  // is in another PID namespace, so that its pid would name another process here.
  [[nodiscard]] bool gone() const {
    return agent_ > 0 && !os::same_process_alive(agent_, start_time_);
  }
  // Lets the agent, and what it starts, look at this process's stack, where the kernel lets nobody
  // look at another's process (Yama).
  void let_it_look() const;
  // Ends this process's group, as its agent would: this process, its wrapper, and what they
  // started.
  [[noreturn]] void follow() const;

 private:
  pid_t agent_ = 0;  // 0: none to watch.
  std::uint64_t start_time_ = 0;
};

}  // namespace holdfast::runtime
