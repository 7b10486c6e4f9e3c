// Hosts: which of them are lost. A host is silent together: its agent and all its workers. Where
// one of these speaks, the host lives, and a process that has died there is its agent's to tell of.
#include <algorithm>
#include <utility>

#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Stage;

namespace {

// An agent counts as silent after so many of its own longest gaps: on a busy host they are long.
constexpr int kGaps = 4;
// The silence has a last call of this part of it: what was said before is heard within that (P10).
constexpr int kLastCall = 4;
// Once all of a host have hung up, it is asked for them again after this time, then twice that, ...
constexpr Duration kFirstAsked = std::chrono::milliseconds(5);
// A scheduler that was started again hears of every host again within so long, if the host lives:
// its processes try to connect at least once a second.
constexpr Duration kReturn = std::chrono::seconds(3);
// The host of a scheduler that another one has replaced, since it was not heard for its lease.
constexpr Duration kReturnOfSuspect = std::chrono::seconds(1);

}  // namespace

// On the scheduler's own host, what there is to know of a death is known at once.
bool Machine::watches_hosts() const {
  if (options_.host_silence == Duration{} || !roster_.assembled()) return false;
  if (formation_.stage == Stage::kEnded) return false;
  const bool elsewhere = !options_.own_host.empty() && roster_.at(0).seat.host != options_.own_host;
  // A place that was given away, and that nobody has taken up yet, may be that of another host.
  return roster_.memories() > 1 || elsewhere || roster_.has_vacant();
}

void Machine::hear_agent(Agent& agent) {
  if (agent.heard != Instant{}) agent.gap = std::max(now_ - agent.heard, agent.gap / 8 * 7);
  agent.heard = now_;
  agent.called.reset();
  // It is back before anybody else has its places.
  if (std::exchange(agent.is_silent, false)) free_places(agent.agent_id, false);
}

// Its host counted as lost, and lives after all: it is back before anybody else has its places.
void Machine::host_speaks(const Member& member) {
  if (!member.is_free) return;
  const std::string agent_id = member.seat.agent;
  free_places(agent_id, false);
  if (const Link link = agents_.link_of(agent_id); link != 0) {
    Agent& agent = agents_.at(link);
    agent.is_silent = false;
    agent.heard = now_;
    agent.called.reset();
    look_at_hosts(now_ + options_.host_silence);
  } else {
    miss_agent({.agent_id = agent_id, .host = member.seat.host});
  }
}

// None of its processes is connected, and it was here itself.
bool Machine::has_hung_up(const Agent& agent) const {
  const std::set<Rank>& owned = roster_.owned_by(agent.agent_id);
  return agent.has_hung_up && !owned.empty() &&
         std::all_of(owned.begin(), owned.end(),
                     [&](Rank rank) { return roster_.at(rank).link == 0; });
}

// All have hung up, and the host's kernel lives and says that none of its processes is there. So no
// fault of the network alone is taken for a loss.
bool Machine::is_proven_lost(const Agent& agent) const {
  if (!has_hung_up(agent)) return false;
  const auto& ranks = roster_.owned_by(agent.agent_id);
  const auto has_lease = [&](Rank rank) { return roster_.at(rank).lease_runs(); };
  return std::any_of(ranks.begin(), ranks.end(), has_lease) &&
         std::none_of(ranks.begin(), ranks.end(),
                      [&](Rank rank) { return has_lease(rank) && roster_.at(rank).is_there; });
}

// A process may close its connection some time before the one at which it listens, and a host may
// be cut off for a while: so this is done more than once.
void Machine::ask(Agent& agent) {
  if (now_ >= agent.asks_at) {
    agent.asks_every = std::max(2 * agent.asks_every, kFirstAsked);
    agent.asks_at = now_ + agent.asks_every;
    for (const Rank rank : roster_.owned_by(agent.agent_id)) {
      const Member& member = roster_.at(rank);
      if (!member.lease_runs() || !member.is_there || member.seat.endpoint.empty()) continue;
      emit(Probe{member.seat.node_id, member.seat.incarnation, member.seat.endpoint});
    }
  }
  look_at_hosts(agent.asks_at);
}

void Machine::on(const NotThere& e) {
  const Rank rank = roster_.rank_of(e.node_id);
  if (rank == kNoRank || roster_.at(rank).seat.incarnation != e.incarnation ||
      roster_.at(rank).link != 0)
    return;
  roster_.alter(roster_.at(rank), [](Member& changed) { changed.is_there = false; });
  look_at_hosts(now_);
  check_hosts();
}

Duration Machine::silence_of(const Agent& agent) const {
  const Duration longest = std::max(options_.host_silence, options_.lease);
  return std::clamp<Duration>(kGaps * agent.gap, options_.host_silence, longest);
}

// Its connection has ended. It may come back, as after a fault of the network; else its host is
// lost, or it has died and takes its processes along.
void Machine::miss_agent(Agent agent) {
  if (!watches_hosts()) return;
  agent.heard = now_;
  agent.gap = {};
  agent.called.reset();
  agent.has_hung_up = true;
  agents_.missing().push_back(std::move(agent));
  look_at_hosts(now_);
}

// The last one of a missed host may have hung up.
void Machine::hang_up(const Member& member) {
  for (Agent& agent : agents_.missing()) {
    if (agent.agent_id != member.seat.agent || !has_hung_up(agent)) continue;
    agent.heard = now_;
    agent.called.reset();
    look_at_hosts(now_);
  }
}

// This scheduler takes over: of no host it has heard yet. Each has an agent that is to come back.
void Machine::miss_all_agents() {
  if (!watches_hosts()) return;
  all_are_back_ = now_ + kReturn;
  for (const auto& [agent_id, ranks] : roster_.owners()) {
    const std::string& host = roster_.at(*ranks.begin()).seat.host;
    const bool is_suspect = !host.empty() && host == options_.suspect_host;
    const Duration patience = is_suspect ? kReturnOfSuspect : kReturn;
    agents_.missing().push_back(
        {.agent_id = agent_id, .host = host, .heard = now_, .gap = patience / kGaps});
    look_at_hosts(now_ + patience);
  }
}

void Machine::look_at_hosts(Instant when) {
  hosts_look_at_ = hosts_look_at_ ? std::min(*hosts_look_at_, when) : when;
}

void Machine::check_hosts() {
  if (!watches_hosts() || !hosts_look_at_ || now_ < *hosts_look_at_) return;
  hosts_look_at_.reset();
  std::set<Rank> lost;
  for (auto& [link, agent] : agents_.here()) check_host(agent, lost);
  for (Agent& agent : agents_.missing()) check_host(agent, lost);
  std::erase_if(agents_.missing(), [](const Agent& agent) { return agent.is_silent; });
  for (const Rank rank : lost) {
    if (roster_.at(rank).lease_runs()) lose(roster_.at(rank));
  }
  assign_free_places();
  for (const auto& [memory, ranks] : free_by_memory(lost))
    tell_lost(ranks, "");  // Nobody takes them.
  answer_askers();
}

// Its host is this scheduler's, which is not lost while this one runs: its leases tell of the rest.
bool Machine::is_here(const Agent& agent) const {
  return !options_.own_agent.empty() && is_own_agent(agent.agent_id);
}

bool Machine::is_silent_for_long(Agent& agent) {
  const auto not_before = [&](Instant when) {
    look_at_hosts(when);
    return false;
  };
  const Duration silence = silence_of(agent);
  if (now_ < agent.heard + silence) return not_before(agent.heard + silence);
  Instant spoke = agent.heard;
  for (const Rank rank : roster_.owned_by(agent.agent_id)) {
    if (roster_.at(rank).seat.incarnation != 0) spoke = std::max(spoke, roster_.at(rank).heard);
  }
  // What its processes said after its own last beat shows that the host lives.
  if (spoke > agent.heard + std::min(agent.gap, options_.host_silence)) {
    agent.heard = spoke;
    agent.called.reset();
    if (now_ < spoke + silence) return not_before(spoke + silence);
  }
  if (!agent.called) agent.called = now_;
  const Instant end = *agent.called + silence / kLastCall;
  return now_ >= end || not_before(end);
}

void Machine::check_host(Agent& agent, std::set<Rank>& lost) {
  if (agent.is_silent || is_here(agent)) return;
  if (!is_proven_lost(agent)) {
    if (has_hung_up(agent)) ask(agent);
    if (!is_silent_for_long(agent)) return;
  }
  const std::set<Rank> ranks = roster_.owned_by(agent.agent_id);
  agent.is_silent = true;
  // Also the place of a process that was lost before: nobody else would start its successor.
  free_places(agent.agent_id, true);
  if (!ranks.empty()) lost_[agent.agent_id] = agent.host;
  lost.insert(ranks.begin(), ranks.end());
}

}  // namespace holdfast::controller
