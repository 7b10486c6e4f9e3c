#include "core/controller/drills.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/text.h"

namespace holdfast::controller {

using wire::DrillKind;
using wire::Ending;
using wire::Reason;

namespace {

constexpr std::size_t kMostNamed = 16;  // Hosts that a refusal names.

std::string listed(const std::set<std::string>& names) {
  std::string all;
  std::size_t count = 0;
  for (const auto& name : names) {
    if (++count <= kMostNamed) all += cat(count == 1 ? "" : ", ", name);
  }
  return count <= kMostNamed ? all : cat(all, " and ", count - kMostNamed, " more");
}

constexpr std::int32_t kKillSignal = 9;

// Whether a drill of this kind ends a process so, or takes its pages.
bool can_cause(DrillKind kind, const Reason& fault) {
  if (kind == DrillKind::kPage) return fault.kind == Reason::Kind::kPagesLost;
  if (fault.kind != Reason::Kind::kRankLost) return false;
  const Ending& ending = fault.ending;
  const auto is_any = [&](std::initializer_list<Ending::Kind> kinds) {
    return std::find(kinds.begin(), kinds.end(), ending.kind) != kinds.end();
  };
  switch (kind) {
    case DrillKind::kKill:  // How it ended need not be known.
      return ending == Ending{Ending::Kind::kSignalled, kKillSignal} ||
             is_any({Ending::Kind::kUnknown, Ending::Kind::kGone, Ending::Kind::kReplaced,
                     Ending::Kind::kNotHeard});
    case DrillKind::kStop:
      return is_any({Ending::Kind::kWasStopped, Ending::Kind::kWasSilent, Ending::Kind::kNotHeard});
    case DrillKind::kHang:
    case DrillKind::kSpin:
      return ending.kind == Ending::Kind::kWasHung;
    default:
      return false;
  }
}

}  // namespace

std::uint64_t drill_behind(const Reason& fault, const std::vector<wire::Remarked>& remarks) {
  for (std::uint64_t number = remarks.size(); number > 0; --number) {
    const Reason& drill = remarks[number - 1].what;
    if (drill.kind != Reason::Kind::kDrill || drill.rank != fault.rank || drill.pid != fault.pid)
      continue;
    if (can_cause(static_cast<DrillKind>(drill.count), fault)) return number;
  }
  return 0;
}

Reason Drills::judge(const wire::Drill& m) const {
  const Roster& roster = job_.roster;
  if (!job_.options.takes_drills) return {.kind = Reason::Kind::kNoDrills};
  if (m.rank < 0 || m.rank >= job_.options.world_size) {
    return {.kind = Reason::Kind::kNoSuchRank, .rank = m.rank, .total = job_.options.world_size};
  }
  const Reason not_now{.kind = Reason::Kind::kNotTraining, .rank = m.rank};
  if (!roster.assembled()) return not_now;
  const Member& member = roster.at(m.rank);
  if (member.link == 0 || member.state != SeatState::kHeld || member.seat.finished) return not_now;
  if (m.at_step != 0 && m.at_step <= member.version) {
    return {.kind = Reason::Kind::kStepIsMade,
            .rank = m.rank,
            .count = static_cast<std::int64_t>(member.version),
            .version = m.at_step};
  }
  if (m.kind == wire::DrillKind::kFlip && (job_.workers() == 1 || m.rank >= job_.workers())) {
    return {.kind = Reason::Kind::kAlone, .rank = m.rank};
  }
  if (m.kind == wire::DrillKind::kCut && roster.memories() <= 1) {
    return {.kind = Reason::Kind::kNoLinks, .rank = m.rank};
  }
  if (m.kind == wire::DrillKind::kSlow && m.for_ms == 0) return not_now;
  if (remarks_.is_full()) return {.kind = Reason::Kind::kTooManyRemarks};
  return {.kind = Reason::Kind::kDrill,
          .rank = m.rank,
          .pid = member.seat.pid,
          .count = static_cast<std::int64_t>(m.kind),
          .total = m.for_ms,
          .version = m.at_step,
          .host = member.seat.host,
          .doing = m.phase};
}

Reason Drills::judge_host(const wire::Drill& m, Link& link) const {
  if (!job_.options.takes_drills) return {.kind = Reason::Kind::kNoDrills};
  if (m.kind != wire::DrillKind::kKill && m.kind != wire::DrillKind::kStop) {
    return {.kind = Reason::Kind::kNotForHosts, .count = static_cast<std::int64_t>(m.kind)};
  }
  const auto& agents = job_.agents.here();
  std::map<std::string, std::size_t> named;  // How many agents are on a host of this name.
  for (const auto& [at, agent] : agents) ++named[agent.host];
  std::set<std::string> names;
  for (const auto& [at, agent] : agents) {
    const bool is_one = named[agent.host] == 1;
    if (agent.agent_id == m.host || (is_one && agent.host == m.host)) link = at;
    names.insert(is_one ? agent.host : agent.agent_id);
  }
  if (link == 0) return {.kind = Reason::Kind::kNoHost, .host = m.host, .detail = listed(names)};
  const Agent& agent = agents.at(link);
  if (names.size() == 1) return {.kind = Reason::Kind::kOnlyHost, .host = m.host};
  if (job_.is_here(agent)) return {.kind = Reason::Kind::kSchedulersHost, .host = m.host};
  if (remarks_.is_full()) return {.kind = Reason::Kind::kTooManyRemarks};
  return {.kind = Reason::Kind::kDrill,
          .count = static_cast<std::int64_t>(m.kind),
          .total = static_cast<std::int64_t>(job_.roster.owned_by(agent.agent_id).size()),
          .host = m.host};
}

void Drills::receive(Link link, const wire::Drill& m) {
  if (job_.has_ended())
    return job_.send(link, wire::Drilled{{.kind = Reason::Kind::kNotTraining, .rank = m.rank}});
  if (const auto why = excess({&m.host})) return job_.reject(link, *why);
  Link victim = 0;
  Reason told = m.host.empty() ? judge(m) : judge_host(m, victim);
  if (told.kind == Reason::Kind::kDrill) {
    if (m.host.empty()) victim = job_.roster.at(m.rank).link;
    remarks_.tell(told.rank, told);
    job_.send(victim, m);
  }
  job_.send(link, wire::Drilled{std::move(told)});
}

}  // namespace holdfast::controller
