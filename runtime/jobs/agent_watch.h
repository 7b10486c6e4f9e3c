// AgentWatch: whether the agent that started this process is gone, for processes that do not die
// with it because a wrapper (bash train.sh) stands between.
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

  // This process, as an agent, in the words of HOLDFAST_AGENT; empty where /proc does not tell.
  [[nodiscard]] static std::string words_for_this_process();

  explicit AgentWatch(const config::Settings& settings);

  // Also of one that was gone before this process began. False without an agent, and where its
  // number means somebody else (another PID namespace).
  [[nodiscard]] bool gone() const {
    return agent_ > 0 && !os::same_process_alive(agent_, start_time_);
  }
  // Ends this process and all that it or its wrapper started in its group, as its agent would have.
  [[noreturn]] void follow() const;

 private:
  pid_t agent_ = 0;  // 0: none to watch.
  std::uint64_t start_time_ = 0;
};

}  // namespace holdfast::runtime
