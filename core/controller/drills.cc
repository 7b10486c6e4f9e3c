#include "core/controller/drills.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace holdfast::controller {

using wire::DrillKind;
using wire::Ending;
using wire::Reason;

namespace {

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

void Drills::receive(Link link, const wire::Drill& m) {
  if (job_.has_ended())
    return job_.send(link, wire::Drilled{{.kind = Reason::Kind::kNotTraining, .rank = m.rank}});
  Reason told = judge(m);
  if (told.kind == Reason::Kind::kDrill) {
    remarks_.tell(m.rank, told);
    job_.send(job_.roster.at(m.rank).link, m);
  }
  job_.send(link, wire::Drilled{std::move(told)});
}

}  // namespace holdfast::controller
