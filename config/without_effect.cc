#include "config/without_effect.h"

#include <array>
#include <string_view>

#include "base/text.h"

namespace holdfast::config {
namespace {

struct Gone {
  std::string_view variable;
  const char* instead;
  const char* harmless = nullptr;  // With this value the variable gives no warning.
};

constexpr std::array kGone = {
    Gone{"MS_HCCL_CM_INIT", "all groups share the same links anyway"},
    Gone{"MS_CLUSTER_RETRY_NUM", "MS_TOPO_TIMEOUT says for how long workers look for the others"},
    Gone{"MS_RECOVERY_INTERVAL", "every change of the job is stored before it is told"},
    Gone{"MS_DISABLE_HEARTBEAT", "silence is always noticed; MS_NODE_TIMEOUT says after how long"}};

}  // namespace

std::vector<std::string> without_effect(const char* const* environment) {
  std::vector<std::string> sentences;
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    for (const Gone& gone : kGone) {
      const std::size_t equals = variable.find('=');
      if (variable.substr(0, equals) != gone.variable) continue;
      if (gone.harmless != nullptr && variable.substr(equals + 1) == gone.harmless) continue;
      sentences.push_back(cat(gone.variable, " has no effect: ", gone.instead));
    }
  }
  return sentences;
}

}  // namespace holdfast::config
