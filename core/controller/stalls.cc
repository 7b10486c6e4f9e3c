#include "core/controller/stalls.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/text.h"

namespace holdfast::controller {

using wire::Reason;

void Stalls::look_at(Instant when) {
  look_at_ = look_at_ ? std::min(*look_at_, when) : when;
}

void Stalls::hear(const std::vector<wire::StandingState>& before, const Agent& now) {
  if (before != now.standing) look_at(job_.now + kGather);
}

// All ranks that stand still, by their agents' words. A rank that has told of a newer step since
// has gone on: its agent may stand still itself. Servers that wait are only counted.
std::map<Rank, Stalls::Blocker> Stalls::standing(std::size_t& idle_servers) const {
  std::map<Rank, Blocker> all;
  for (const auto& [link, agent] : job_.agents.here()) {
    for (const auto& state : agent.standing) {
      const Rank rank = job_.roster.rank_of(state.node_id);
      if (rank == kNoRank || state.generation > job_.formation.generation) continue;
      const Member& member = job_.roster.at(rank);
      if (member.seat.agent != agent.agent_id || member.seat.finished) continue;
      if (state.version < member.version) continue;
      const bool is_newest = state.generation == job_.formation.generation;
      if (rank >= job_.workers() && is_newest &&
          (state.exchanges || state.doing == Doing::kCommitting)) {
        ++idle_servers;
        continue;
      }
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
// at a later one or have ended their training. Of those who stand there, a rank in an exchange of
// some ranks waits for those who are in none; but who is in it is not known, so that counts only if
// all ranks stand.
std::map<Rank, Stalls::Blocker> Stalls::blockers() const {
  std::size_t idle_servers = 0;
  auto all = standing(idle_servers);
  // An exchange of private parts is no operation of all ranks. Who is there, or behind it, waits
  // for those of its operation that have yet to come there.
  const auto place = [](const Blocker& blocker) {
    const Doing doing = blocker.state.doing;
    const bool is_behind = doing == Doing::kCopying || doing == Doing::kCommitting;
    return std::tuple(blocker.state.generation, blocker.state.operations, is_behind);
  };
  const auto first = std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return place(a.second) < place(b.second);
  });
  if (first == all.end()) return {};
  const auto least = place(first->second);
  const auto world = static_cast<std::size_t>(job_.roster.world_size());
  const bool all_stand = all.size() + ended_ + idle_servers == world;
  const bool is_old = std::get<0>(least) < job_.formation.generation;
  Instant wait_began = job_.now;
  const auto leave_out = [&](auto waits) {
    return std::erase_if(all, [&](const auto& entry) {
      if (!waits(entry.second)) return false;
      wait_began = std::min(wait_began, entry.second.since);
      return true;
    });
  };
  std::size_t waiting = leave_out([&](const Blocker& other) {
    return is_old ? other.state.generation == job_.formation.generation : place(other) != least;
  });
  const auto exchanges = [](const Blocker& other) { return other.state.exchanges; };
  const bool all_exchange = std::all_of(all.begin(), all.end(),
                                        [&](const auto& entry) { return exchanges(entry.second); });
  if (!is_old && !all_stand && all_exchange) return {};  // They wait for one that goes on.
  if (!is_old && all_stand && !all_exchange) waiting += leave_out(exchanges);
  if (is_old) waiting = world - all.size();
  return blame(std::move(all), {.waiting = waiting,
                                .not_before = is_old                  ? began_
                                              : waiting + ended_ == 0 ? Instant::min()
                                              : waiting == 0          ? ended_at_
                                                                      : wait_began,
                                .is_old = is_old,
                                .all_exchange = all_exchange && !is_old});
}

// What is said of ranks that hold up others, and when.
std::map<Rank, Stalls::Blocker> Stalls::blame(std::map<Rank, Blocker> all, const Wait& wait) const {
  const auto world = static_cast<std::size_t>(job_.roster.world_size());
  const bool nobody_waits = wait.waiting + ended_ == 0;
  // Nobody waits for a job's only rank but its user. If all are in exchanges, they wait for each
  // other, each in an exchange that another one is not in.
  const bool is_lone = nobody_waits && world == 1;
  const bool is_deadlock = nobody_waits && world > 1 && wait.all_exchange && all.size() == world;
  if (nobody_waits && !is_lone && !is_deadlock) return {};
  Instant not_before = std::max(wait.not_before, job_.waits_count_from);
  if (is_deadlock) {
    for (const auto& [rank, blocker] : all) not_before = std::max(not_before, blocker.since);
  }
  const bool is_alone = all.size() == 1;
  while (all.size() > kNamed) all.erase(std::prev(all.end()));
  for (auto& [rank, blocker] : all) {
    // The others wait only from when they have come, or have ended, or since the fault.
    blocker.since = std::max(blocker.since, not_before);
    blocker.waiting =
        is_lone ? -1
                : static_cast<std::int64_t>(wait.is_old ? wait.waiting : wait.waiting + ended_);
    blocker.may_be_ended =
        wait.waiting > 0 && is_alone && blocker.state.has_stepped && !wait.all_exchange;
    blocker.patience = is_lone             ? kLone
                       : is_deadlock       ? kExchange
                       : wait.is_old       ? kNextLook
                       : wait.waiting == 0 ? kLastOnes
                                           : Duration{};
  }
  return all;
}

void Stalls::note_changes() {
  if (std::exchange(generation_, job_.formation.generation) != job_.formation.generation) {
    began_ = job_.now;
  }
  const std::size_t ended = job_.roster.in_state(SeatState::kFinished) +
                            job_.roster.in_state(SeatState::kOrphaned) +
                            job_.roster.in_state(SeatState::kLeft);
  if (std::exchange(ended_, ended) != ended) ended_at_ = job_.now;
}

void Stalls::check() {
  if (!look_at_ || job_.now < *look_at_) return;
  look_at_.reset();
  note_changes();
  if (job_.formation.is_paused()) return blockers_.clear();
  auto now = job_.has_ended() ? decltype(blockers_){} : blockers();
  for (auto& [rank, former] : blockers_) {
    const auto found = now.find(rank);
    const bool stands = found != now.end() && found->second.incarnation == former.incarnation &&
                        found->second.state.operations == former.state.operations;
    if (!stands) {
      if (former.is_told) note_end(rank, former);
      continue;
    }
    Blocker& blocker = found->second;
    const auto kind = [](const Blocker& one) {
      return std::clamp<std::int64_t>(one.waiting, -1, 1);
    };
    if (kind(blocker) != kind(former)) continue;  // It is another wait.
    blocker.since = former.since;
    blocker.is_told = former.is_told;
    if (blocker.agent != former.agent) continue;  // What it was sent may be lost.
    blocker.asked = former.asked;
    blocker.is_evicted = former.is_evicted;
  }
  blockers_ = std::move(now);
  for (auto& [rank, blocker] : blockers_) follow(rank, blocker);
}

// Remembers how long the rank has stood, if it went on by itself: its process and the connection of
// its agent are the same.
void Stalls::note_end(Rank rank, const Blocker& blocker) {
  const bool is_same = job_.roster.at(rank).seat.incarnation == blocker.incarnation &&
                       job_.agents.find(blocker.agent) != nullptr;
  if (!is_same || blocker.is_evicted) return;
  Harmless& harmless = harmless_[rank];
  if (harmless.incarnation != blocker.incarnation) harmless = {blocker.incarnation, {}};
  harmless.longest = std::max(harmless.longest, job_.now - blocker.since);
}

// From when on the rank is named.
Instant Stalls::names_at(Rank rank, const Blocker& blocker) const {
  Duration patience = blocker.patience;
  const auto harmless = harmless_.find(rank);
  if (harmless != harmless_.end() && harmless->second.incarnation == blocker.incarnation) {
    patience = std::max(patience, 2 * harmless->second.longest);
  }
  const Duration limit = job_.options.hang_timeout;
  if (limit != Duration{} && blocker.may_be_ended) patience = std::min(patience, limit);
  return blocker.since + patience;
}

// Names the rank, once its agent has said what its process does or has had the time to. Then has it
// ended, once the limit is over.
void Stalls::follow(Rank rank, Blocker& blocker) {
  if (!blocker.is_told) {
    if (const Instant at = names_at(rank, blocker); job_.now < at) return look_at(at);
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
  const Duration limit = job_.options.hang_timeout;
  if (limit == Duration{} || blocker.is_evicted || !blocker.may_be_ended) return;
  if (job_.now < blocker.since + limit) return look_at(blocker.since + limit);
  blocker.is_evicted = true;
  job_.send(blocker.agent, wire::Evict{blocker.state.node_id, blocker.incarnation, true});
}

Reason Stalls::reason(Rank rank, const Blocker& blocker) const {
  const wire::Seat& seat = job_.roster.at(rank).seat;
  const auto for_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(job_.now - blocker.since);
  const auto limit = std::chrono::duration_cast<std::chrono::seconds>(job_.options.hang_timeout);
  return {.kind = Reason::Kind::kHoldsUp,
          .rank = rank,
          .pid = seat.pid,
          .count = for_ms.count(),
          .total = blocker.waiting,
          .version = blocker.state.version != kNoVersion ? blocker.state.version : 0,
          .node_id = seat.node_id,
          .host = seat.host,
          .other = job_.options.hang_timeout == Duration{} || !blocker.may_be_ended
                       ? ""
                       : cat(limit.count()),
          .detail = blocker.state.report,
          .doing = blocker.state.doing};
}

std::vector<Reason> Stalls::named() const {
  std::vector<Reason> all;
  if (job_.formation.is_paused()) return all;
  for (const auto& [rank, blocker] : blockers_) {
    if (blocker.is_told) all.push_back(reason(rank, blocker));
  }
  return all;
}

}  // namespace holdfast::controller
