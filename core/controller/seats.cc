// Whose lease has run out, and what is waited for then.
#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

// A process that lives and has joined before may take its time between two steps (an evaluation);
// one that is gone, or a successor that never joins, may not.
bool Machine::waits_for_replacement() const {
  if (formation_.stage != Stage::kStopping && formation_.stage != Stage::kRepairing) return false;
  const bool starts = formation_.generation <= 1;  // User code may prepare for long.
  return roster_.absent() != 0 || (roster_.unjoined() != 0 && !starts);
}

void Machine::check_leases() {
  for (const Rank rank : roster_.take_silent(now_)) lose(roster_.at(rank));
  maybe_all_left();
}

// Its lease has run out.
void Machine::lose(const Member& member) {
  const Rank rank = member.rank;
  roster_.advance(member, SeatEvent::kLeaseOver);
  roster_.alter(member,
                [](Member& changed) { changed.ending = {.kind = wire::Ending::Kind::kNotHeard}; });
  evict(member);
  if (!member.seat.finished) {
    rank_lost(rank,
              {.kind = Reason::Kind::kRankLost,
               .rank = rank,
               .pid = member.seat.pid,
               .ending = member.ending},
              0);
  }
  answer_waiting(member.seat.node_id);
}

}  // namespace holdfast::controller
