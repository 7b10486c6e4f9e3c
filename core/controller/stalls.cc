#include "core/controller/stalls.h"

#include <algorithm>
#include <utility>

namespace holdfast::controller {

using wire::Reason;

void Stalls::look_at(Instant when) {
  look_at_ = look_at_ ? std::min(*look_at_, when) : when;
}

void Stalls::hear(const std::vector<wire::StandingState>& before, const Agent& now) {
  if (before != now.standing) look_at(job_.now + kGather);
}

// All ranks that stand still, by their agents' words.
std::map<Rank, Stalls::Blocker> Stalls::standing() const {
  std::map<Rank, Blocker> all;
  for (const auto& [link, agent] : job_.agents.here()) {
    for (const auto& state : agent.standing) {
      const Rank rank = job_.roster.rank_of(state.node_id);
      if (rank == kNoRank) continue;
      const Member& member = job_.roster.at(rank);
      if (member.seat.agent != agent.agent_id || member.seat.finished) continue;
      all[rank] = {.incarnation = member.seat.incarnation,
                   .state = state,
                   .agent = link,
                   .since = job_.now - std::chrono::milliseconds(state.for_ms)};
    }
  }
  return all;
}

// The first of the ranks that the others wait for. A rank that stands in an older generation keeps
// the newest one from forming. Else it is whoever stands at the earliest operation, if others stand
// at a later one or have ended their training.
std::map<Rank, Stalls::Blocker> Stalls::blockers() const {
  auto all = standing();
  const auto place = [](const Blocker& blocker) {
    return std::pair(blocker.state.generation, blocker.state.operations);
  };
  const auto first = std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return place(a.second) < place(b.second);
  });
  if (first == all.end()) return {};
  const auto least = place(first->second);
  const bool is_old = least.first < job_.formation.generation;
  Instant wait_began = job_.now;
  std::size_t waiting = std::erase_if(all, [&](const auto& entry) {
    const Blocker& other = entry.second;
    const bool waits =
        is_old ? other.state.generation == job_.formation.generation : place(other) != least;
    if (waits) wait_began = std::min(wait_began, other.since);
    return waits;
  });
  if (is_old) waiting = static_cast<std::size_t>(job_.roster.world_size()) - all.size();
  const std::size_t ended = job_.roster.in_state(SeatState::kFinished) +
                            job_.roster.in_state(SeatState::kOrphaned) +
                            job_.roster.in_state(SeatState::kLeft);
  if (waiting + ended == 0) return {};
  while (all.size() > kNamed) all.erase(std::prev(all.end()));
  for (auto& [rank, blocker] : all) {
    // The others wait only from when they have come, or since the fault.
    if (is_old) blocker.since = std::max(blocker.since, began_);
    if (!is_old && waiting > 0) blocker.since = wait_began;
    blocker.waiting = static_cast<std::int64_t>(is_old ? waiting : waiting + ended);
    blocker.may_be_ended = waiting > 0;
    blocker.patience = is_old ? kNextLook : waiting == 0 ? kLastOnes : Duration{};
  }
  return all;
}

void Stalls::check() {
  if (!look_at_ || job_.now < *look_at_) return;
  look_at_.reset();
  if (std::exchange(generation_, job_.formation.generation) != job_.formation.generation) {
    began_ = job_.now;
  }
  auto now = job_.has_ended() ? decltype(blockers_){} : blockers();
  for (auto& [rank, former] : blockers_) {
    const auto found = now.find(rank);
    const bool stands = found != now.end() && found->second.incarnation == former.incarnation &&
                        found->second.state.operations == former.state.operations;
    if (stands) {
      found->second.since = former.since;
      found->second.asked = former.asked;
      found->second.is_told = former.is_told;
      found->second.is_evicted = former.is_evicted;
    } else if (former.is_told && !former.is_evicted) {
      harmless_[rank] = std::max(harmless_[rank], job_.now - former.since);
    }
  }
  blockers_ = std::move(now);
  for (auto& [rank, blocker] : blockers_) follow(rank, blocker);
}

// Names the rank, once its agent has said what its process does or has had the time to. Then has it
// ended, once the limit is over.
void Stalls::follow(Rank rank, Blocker& blocker) {
  if (!blocker.is_told) {
    const auto harmless = harmless_.find(rank);
    const Duration tolerated = harmless == harmless_.end() ? Duration{} : 2 * harmless->second;
    const Instant names_at = blocker.since + std::max(tolerated, blocker.patience);
    if (job_.now < names_at) return look_at(names_at);
    if (!blocker.asked) {
      blocker.asked = job_.now;
      job_.send(blocker.agent, wire::Inspect{blocker.state.node_id, blocker.incarnation});
    }
    const Instant answered_by = *blocker.asked + kInspection;
    if (blocker.state.report.empty() && job_.now < answered_by) return look_at(answered_by);
    blocker.is_told = true;
    const Reason why = reason(rank, blocker);
    job_.note(Note::Kind::kHeldUp, rank, why);
    job_.tell_agents(wire::Waiting{why});
  }
  if (job_.options.hang_timeout == Duration{} || blocker.is_evicted || !blocker.may_be_ended) {
    return;
  }
  const Instant ends_at = blocker.since + job_.options.hang_timeout;
  if (job_.now < ends_at) return look_at(ends_at);
  blocker.is_evicted = true;
  job_.send(blocker.agent, wire::Evict{blocker.state.node_id, blocker.incarnation, true});
}

Reason Stalls::reason(Rank rank, const Blocker& blocker) const {
  const wire::Seat& seat = job_.roster.at(rank).seat;
  const auto for_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(job_.now - blocker.since);
  return {.kind = Reason::Kind::kHoldsUp,
          .rank = rank,
          .pid = seat.pid,
          .count = for_ms.count(),
          .total = blocker.waiting,
          .version = blocker.state.version,
          .node_id = seat.node_id,
          .host = seat.host,
          .detail = blocker.state.report,
          .doing = blocker.state.doing};
}

std::vector<Reason> Stalls::named() const {
  std::vector<Reason> all;
  for (const auto& [rank, blocker] : blockers_) {
    if (blocker.is_told) all.push_back(reason(rank, blocker));
  }
  return all;
}

}  // namespace holdfast::controller
