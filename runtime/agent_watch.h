// AgentWatch: whether the agent that started this process is gone, for processes that do not die
// with it because a wrapper (bash train.sh) stands between.
#pragma once

#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "config/settings.h"
#include "io/process.h"

namespace holdfast::runtime {

class AgentWatch {
 public:
  static constexpr Duration kEvery = std::chrono::seconds(1);  // How often to ask.

  explicit AgentWatch(const config::Settings& settings)
      : agent_(settings.agent), began_(agent_ > 0 ? io::start_time(agent_) : std::nullopt) {}

  // False without an agent, and where the agent can not be seen (another PID namespace).
  [[nodiscard]] bool gone() const { return began_ && !io::same_process_alive(agent_, *began_); }
  // Ends this process and all that it or its wrapper started in its group, as its agent would have.
  [[noreturn]] void follow() const;

 private:
  pid_t agent_;
  std::optional<std::uint64_t> began_;
};

}  // namespace holdfast::runtime
