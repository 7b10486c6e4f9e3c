#include "core/controller/hosts.h"

#include <algorithm>

namespace holdfast::controller {

namespace {

// An agent counts as silent after this many of its own longest gaps: on a busy host, gaps are long.
constexpr int kGaps = 4;
// Before a silent host counts as lost, it has a last call of silence / kLastCall: messages that it
// sent before arrive within this time (P10).
constexpr int kLastCall = 4;
// Once all processes of a host have hung up, they are probed again after this time, then after
// twice this time, and so on.
constexpr Duration kFirstAsked = std::chrono::milliseconds(5);
// How long a scheduler that was started again waits to hear of a host: the processes of a live host
// try to connect at least once a second.
constexpr Duration kReturn = std::chrono::seconds(3);
// The same for the host of a scheduler that was replaced because its lease ran out.
constexpr Duration kReturnOfSuspect = std::chrono::seconds(1);

}  // namespace

void HostWatch::hear(Agent& agent) {
  if (agent.heard != Instant{}) agent.gap = std::max(job_.now - agent.heard, agent.gap / 8 * 7);
  agent.heard = job_.now;
  agent.called.reset();
  // The agent's places have no other owner yet, so it gets them back.
  if (std::exchange(agent.is_silent, false)) owners_.take_back(agent.agent_id);
}

// If the member's host counted as lost, it lives after all. Nobody else has its places yet, so its
// agent has them back.
void HostWatch::hear_member(const Member& member) {
  if (!member.is_free) return;
  const std::string agent_id = member.seat.agent;
  owners_.take_back(agent_id);
  if (const Link link = agents_.link_of(agent_id); link != 0) {
    Agent& agent = agents_.at(link);
    agent.is_silent = false;
    agent.heard = job_.now;
    agent.called.reset();
    look_at(job_.now + job_.options.host_silence);
  } else {
    miss({.agent_id = agent_id, .host = member.seat.host});
  }
}

// Whether the agent was connected, and neither it nor any process in its places is connected now.
bool HostWatch::has_hung_up(const Agent& agent) const {
  const std::set<Rank>& owned = roster_.owned_by(agent.agent_id);
  return agent.has_hung_up && !owned.empty() &&
         std::all_of(owned.begin(), owned.end(),
                     [&](Rank rank) { return roster_.at(rank).link == 0; });
}

// Whether all have hung up, and the host's kernel has answered that none of the processes with a
// lease is there. The kernel's answers rule out that only the network has failed.
bool HostWatch::is_proven_lost(const Agent& agent) const {
  if (!has_hung_up(agent)) return false;
  const auto& ranks = roster_.owned_by(agent.agent_id);
  const auto has_lease = [&](Rank rank) { return roster_.at(rank).lease_runs(); };
  return std::any_of(ranks.begin(), ranks.end(), has_lease) &&
         std::none_of(ranks.begin(), ranks.end(),
                      [&](Rank rank) { return has_lease(rank) && roster_.at(rank).is_there; });
}

// Probes the processes of a host, more than once: a process may close its connection some time
// before its listening socket, and the host may be cut off for a while.
void HostWatch::ask(Agent& agent) {
  if (job_.now >= agent.asks_at) {
    agent.asks_every = std::max(2 * agent.asks_every, kFirstAsked);
    agent.asks_at = job_.now + agent.asks_every;
    for (const Rank rank : roster_.owned_by(agent.agent_id)) {
      const Member& member = roster_.at(rank);
      if (!member.lease_runs() || !member.is_there || member.seat.endpoint.empty()) continue;
      job_.emit(Probe{member.seat.node_id, member.seat.incarnation, member.seat.endpoint});
    }
  }
  look_at(agent.asks_at);
}

void HostWatch::receive(const NotThere& e) {
  const Rank rank = roster_.rank_of(e.node_id);
  if (rank == kNoRank || roster_.at(rank).seat.incarnation != e.incarnation ||
      roster_.at(rank).link != 0)
    return;
  roster_.alter(roster_.at(rank), [](Member& changed) { changed.is_there = false; });
  look_at(job_.now);
  check();
}

Duration HostWatch::silence_of(const Agent& agent) const {
  const Duration longest = std::max(job_.options.host_silence, job_.options.lease);
  return std::clamp<Duration>(kGaps * agent.gap, job_.options.host_silence, longest);
}

// The agent's connection has ended. It may come back, as after a fault of the network. Otherwise
// its host is lost, or the agent has died and its processes end with it.
void HostWatch::miss(Agent agent) {
  if (!job_.watches_hosts()) return;
  agent.heard = job_.now;
  agent.gap = {};
  agent.called.reset();
  agent.has_hung_up = true;
  agents_.missing().push_back(std::move(agent));
  look_at(job_.now);
}

// The member may be the last process of a missed host to hang up: then the silence counts from now.
void HostWatch::hang_up(const Member& member) {
  for (Agent& agent : agents_.missing()) {
    if (agent.agent_id != member.seat.agent || !has_hung_up(agent)) continue;
    agent.heard = job_.now;
    agent.called.reset();
    look_at(job_.now);
  }
}

// This scheduler has just started and has heard of no host yet: all agents on record are missed.
void HostWatch::miss_all() {
  if (!job_.watches_hosts()) return;
  job_.all_are_back = job_.now + kReturn;
  for (const auto& [agent_id, ranks] : roster_.owners()) {
    const std::string& host = roster_.at(*ranks.begin()).seat.host;
    const bool is_suspect = !host.empty() && host == job_.options.suspect_host;
    const Duration patience = is_suspect ? kReturnOfSuspect : kReturn;
    agents_.missing().push_back(
        {.agent_id = agent_id, .host = host, .heard = job_.now, .gap = patience / kGaps});
    look_at(job_.now + patience);
  }
}

void HostWatch::look_at(Instant when) {
  look_at_ = look_at_ ? std::min(*look_at_, when) : when;
}

void HostWatch::check() {
  if (!job_.watches_hosts() || !look_at_ || job_.now < *look_at_) return;
  look_at_.reset();
  std::set<Rank> lost;
  for (auto& [link, agent] : agents_.here()) check_host(agent, lost);
  for (Agent& agent : agents_.missing()) check_host(agent, lost);
  std::erase_if(agents_.missing(), [](const Agent& agent) { return agent.is_silent; });
  for (const Rank rank : lost) {
    if (roster_.at(rank).lease_runs()) membership_.lose(roster_.at(rank));
  }
  owners_.assign_free_places();
  owners_.tell_not_taken(lost);
  owners_.answer_askers();
}

bool HostWatch::is_silent_for_long(Agent& agent) {
  const auto not_before = [&](Instant when) {
    look_at(when);
    return false;
  };
  const Duration silence = silence_of(agent);
  if (job_.now < agent.heard + silence) return not_before(agent.heard + silence);
  Instant spoke = agent.heard;
  for (const Rank rank : roster_.owned_by(agent.agent_id)) {
    if (roster_.at(rank).seat.incarnation != 0) spoke = std::max(spoke, roster_.at(rank).heard);
  }
  // A message of its processes after its own last one shows that the host lives.
  if (spoke > agent.heard + std::min(agent.gap, job_.options.host_silence)) {
    agent.heard = spoke;
    agent.called.reset();
    if (job_.now < spoke + silence) return not_before(spoke + silence);
  }
  if (!agent.called) agent.called = job_.now;
  const Instant end = *agent.called + silence / kLastCall;
  return job_.now >= end || not_before(end);
}

void HostWatch::check_host(Agent& agent, std::set<Rank>& lost) {
  if (agent.is_silent || job_.is_here(agent)) return;
  if (!is_proven_lost(agent)) {
    if (has_hung_up(agent)) ask(agent);
    if (!is_silent_for_long(agent)) return;
  }
  const std::set<Rank> ranks = roster_.owned_by(agent.agent_id);
  agents_.set_silent(agent);
  // Places whose processes were lost before become free as well: nobody else would start
  // successors.
  owners_.free_places(agent);
  lost.insert(ranks.begin(), ranks.end());
}

std::optional<Instant> HostWatch::deadline() const {
  return job_.watches_hosts() ? look_at_ : std::nullopt;
}

}  // namespace holdfast::controller
