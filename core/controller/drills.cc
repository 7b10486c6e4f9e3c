#include "core/controller/drills.h"

#include <utility>

namespace holdfast::controller {

using wire::Reason;

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
  if (m.kind == wire::DrillKind::kCut && roster.memories() <= 1) {
    return {.kind = Reason::Kind::kNoLinks, .rank = m.rank};
  }
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
