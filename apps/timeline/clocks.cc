#include "apps/timeline/clocks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace holdfast::apps::timeline {
namespace {

struct Clock {
  std::int64_t first_ns = 0;  // The first time in the file that `wall_ahead_ns` is from.
  std::int64_t wall_ahead_ns = 0;
};

void move(File& file, std::int64_t by_ns) {
  for (auto& event : file.events) {
    event.t_ns += by_ns;
    if (event.detected_ns != 0) event.detected_ns += by_ns;
  }
  for (auto& step : file.steps) step.t_ns += by_ns;
}

}  // namespace

std::size_t set_on_one_clock(std::vector<File>& files) {
  // A wall clock may be set while the job runs. So the earliest file of a host counts for all.
  std::map<std::string, Clock> clocks;
  for (const auto& file : files) {
    if (file.boot.empty()) continue;
    const Clock its{file.first_ns(), file.wall_ahead_ns};
    const auto [known, is_new] = clocks.try_emplace(file.boot, its);
    if (!is_new && its.first_ns < known->second.first_ns) known->second = its;
  }
  if (clocks.empty()) return 1;
  // The clock of the host that has been up longest: so times are only shifted forward.
  const auto least =
      std::min_element(clocks.begin(), clocks.end(), [](const auto& a, const auto& b) {
        return a.second.wall_ahead_ns < b.second.wall_ahead_ns;
      })->second.wall_ahead_ns;
  for (auto& file : files) {
    if (file.boot.empty()) continue;
    const std::int64_t by_ns = clocks[file.boot].wall_ahead_ns - least;
    move(file, std::min(by_ns, kLatest - std::max(file.first_ns(), file.last_ns())));
    file.wall_ahead_ns = least;
  }
  return clocks.size();
}

}  // namespace holdfast::apps::timeline
