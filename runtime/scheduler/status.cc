#include "runtime/scheduler/status.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace holdfast::runtime {
namespace {

using controller::Phase;

const char* in_words(Phase phase) {
  switch (phase) {
    case Phase::kAssembling:
      return "waiting for workers";
    case Phase::kStopping:
      return "stopping for a recovery";
    case Phase::kRepairing:
      return "repairing";
    case Phase::kRunning:
      return "running";
    case Phase::kEnded:
      return "ended";
  }
  return "unknown";
}

const char* state_of(const controller::Member& member, bool finished, Phase phase) {
  if (finished) return member.left ? "finished" : "finishing";
  if (member.dead) return "dead, waiting for its successor";
  if (member.lost) return "lost, waiting for its successor";
  if (member.link == 0) return "not connected";
  if (phase == Phase::kRunning) return "training";
  return member.joined ? "stopped" : "preparing";
}

}  // namespace

std::string status_json(const controller::Machine& machine, std::int32_t world_size,
                        const std::deque<std::string>& reports) {
  const wire::Record& record = machine.record();
  auto ranks = nlohmann::ordered_json::array();
  Version least = kNoVersion;
  for (const auto& [node_id, member] : machine.members()) {
    const bool ranked = member.rank != kNoRank;
    const bool finished = ranked && record.ranks[static_cast<std::size_t>(member.rank)].finished;
    least = std::min(least, member.version);
    ranks.push_back(
        {{"rank", ranked ? nlohmann::ordered_json(member.rank) : nullptr},
         {"node_id", node_id},
         {"pid", member.pid},
         {"host", member.host},
         {"state", state_of(member, finished, machine.phase())},
         {"version", member.version},
         {"loss", std::isfinite(member.loss) ? nlohmann::ordered_json(member.loss) : nullptr}});
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const auto& a, const auto& b) { return a["rank"] < b["rank"]; });
  auto recoveries = nlohmann::ordered_json::array();
  for (const auto& report : reports) {
    auto json = nlohmann::ordered_json::parse(report, nullptr, false);
    if (json.is_object()) recoveries.push_back(std::move(json));
  }
  const nlohmann::ordered_json json = {{"job", record.job},
                                       {"state", in_words(machine.phase())},
                                       {"generation", record.generation},
                                       {"version", least == kNoVersion ? 0 : least},
                                       {"world_size", world_size},
                                       {"recoveries", record.recoveries},
                                       {"cause", machine.cause()},
                                       {"reason", record.reason},
                                       {"ranks", ranks},
                                       {"recovery_reports", recoveries}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace holdfast::runtime
