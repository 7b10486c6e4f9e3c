#include "core/controller/job_end.h"

#include <algorithm>

namespace holdfast::controller {

using wire::PeerKind;
using wire::Reason;

// While leaves_at_ is set, the own agent is waited for: it has to hear of the end first (P32).
void JobEnd::tell(Link link) {
  Peer* peer = job_.connections.open(link);
  if (peer == nullptr || (leaves_at_ && !left_)) return;
  if (std::exchange(peer->is_told_end, true)) return;
  if (peer->kind != PeerKind::kObserver) {
    job_.send(link, wire::JobEnded{formation_.success, formation_.end});
  }
  // An agent of another host hangs up itself once it has heard of the end: it may be cut off just
  // now.
  const Agent* agent = job_.agents.find(link);
  const bool is_own = agent != nullptr && job_.is_here(*agent);
  if (peer->kind != PeerKind::kAgent || is_own) job_.dismiss(link);
}

// Agents first: they have to know of the end before the processes that they watch exit.
void JobEnd::tell_all() {
  for (const bool agents : {true, false}) {
    for (const auto& [link, peer] : job_.connections.all()) {
      if ((peer.kind == PeerKind::kAgent) == agents) tell(link);
    }
  }
}

// A job ends in good order when its workers have: servers only wait for them.
void JobEnd::maybe_all_left() {
  if (job_.has_ended() || !job_.roster.assembled()) return;
  const auto& members = job_.roster.each();
  const bool all =
      std::all_of(members.begin(), members.begin() + job_.workers(), [](const Member& member) {
        return member.state == SeatState::kLeft || member.state == SeatState::kDeserted;
      });
  if (!all) return;
  end(true, {.kind = Reason::Kind::kAllEnded, .total = job_.roster.world_size()});
}

// All processes of the job have ended in good order, and none has ever asked for a rank.
void JobEnd::maybe_nobody_came() {
  if (job_.roster.assembled() || !job_.roster.arrivals().empty()) return;
  if (job_.agents.words().size() < static_cast<std::size_t>(job_.options.world_size)) return;
  const bool all =
      std::all_of(job_.agents.words().begin(), job_.agents.words().end(), [](const auto& entry) {
        const wire::PlaceState& place = entry.second.place;
        const bool well = place.ending == wire::Ending{wire::Ending::Kind::kExited, 0};
        return place.attempt > 0 && !place.alive && well;
      });
  if (!all) return;
  end(true, {.kind = Reason::Kind::kNobodyAsked,
             .total = static_cast<std::int64_t>(job_.agents.words().size())});
}

void JobEnd::end(bool success, Reason reason) {
  job_.enter(StageEvent::kOver);
  formation_.success = success;
  formation_.end = std::move(reason);
  job_.store();
  job_.emit(End{success, formation_.end});
  wait_for_agent();
  tell_all();
  job_.key_values.clear();
  if (!leaves_at_) leave();
}

// An agent that has not heard of the job's end takes the exit of a worker or of the scheduler for a
// death. It would start them again and blame them. So it hears of the end before they go.
void JobEnd::wait_for_agent() {
  const bool is_here =
      std::any_of(job_.agents.here().begin(), job_.agents.here().end(),
                  [&](const auto& entry) { return job_.is_own_agent(entry.second.agent_id); });
  if (job_.options.by_agent && !is_here) leaves_at_ = job_.now + job_.options.agent_patience;
}

void JobEnd::leave() {
  if (std::exchange(left_, true)) return;
  tell_all();
  // Processes that are cut off look for this scheduler, and after a restart all do. They should
  // hear of the end.
  const bool unheard =
      std::any_of(job_.roster.each().begin(), job_.roster.each().end(), [&](const Member& member) {
        return member.link == 0 && (member.lease_runs() || member.state == SeatState::kSilent);
      });
  job_.emit(Leave{unheard || !job_.agents.missing().empty() || job_.now < job_.all_are_back});
}

void JobEnd::go_on() {
  job_.emit(End{formation_.success, formation_.end});
  wait_for_agent();
  if (!leaves_at_) leave();
}

void JobEnd::tell_own_agent(Link link) {
  leaves_at_.reset();
  tell(link);
  job_.dismiss(link);
  leave();
}

void JobEnd::leave_in_time() {
  if (leaves_at_ && job_.now >= *leaves_at_) leave();
}

std::optional<Instant> JobEnd::deadline() const {
  return left_ ? std::nullopt : leaves_at_;
}

}  // namespace holdfast::controller
