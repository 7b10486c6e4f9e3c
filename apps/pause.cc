// `holdfast pause` and `holdfast resume`.
#include "apps/ask.h"
#include "apps/commands.h"

namespace holdfast::apps {

int pause(const std::string& job, bool on) {
  using Kind = wire::Reason::Kind;
  return give_order<wire::Paused>(job, wire::Pause{.on = on}, on ? Kind::kPaused : Kind::kUnpaused,
                                  std::chrono::seconds(15));
}

}  // namespace holdfast::apps
