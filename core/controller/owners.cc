#include "core/controller/owners.h"

#include <algorithm>

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

// Tells the agent who has the places that it asks for. It waits for them, in case that agent is
// lost.
void Owners::tell_who_has_them(Link link) {
  const Agent& agent = agents_.at(link);
  for (const auto& place : agent.asks) {
    if (right_to(place.node_id, agent) != Right::kNotYet) continue;
    const Agent* other = owner_here(place.node_id);
    if (other == nullptr) continue;
    return job_.send(link, wire::Waiting{{.kind = Reason::Kind::kNotItsPlace,
                                          .node_id = place.node_id,
                                          .other = other->agent_id,
                                          .other_host = other->host}});
  }
}

void Owners::take_up(Link link, const std::map<std::string, PlaceWord>& former) {
  Agent& agent = agents_.at(link);
  std::vector<wire::PlaceState> asks;
  std::vector<wire::PlaceState> taken;
  std::vector<std::string> from_others;
  for (const auto& place : agent.asks) {
    switch (right_to(place.node_id, agent)) {
      case Right::kIts:
        if (agents_.take_word(link, place)) from_others.push_back(place.node_id);
        taken.push_back(place);
        break;
      case Right::kNotYet:
        asks.push_back(place);
        break;
      case Right::kLost:
        agent.has_others = true;
        break;
    }
  }
  agents_.set_asks(link, std::move(asks));
  for (const auto& node_id : from_others) {
    if (!roster_.assembled()) membership_.forget_arrival(node_id);
  }
  for (const auto& place : taken) {
    if (const Rank rank = roster_.rank_of(place.node_id); rank != kNoRank)
      own(rank, agent.agent_id);
  }
  if (job_.has_ended()) return;
  if (roster_.has_changed()) job_.store();
  agents_.set_untold(link);
  tell_owners();
  for (const auto& place : taken) {
    const auto before = former.find(place.node_id);
    if (before == former.end() || before->second.place != place) membership_.apply_word(place);
  }
  membership_.maybe_assemble();
}

void Owners::answer_askers() {
  if (!std::exchange(have_changed_, false) || job_.has_ended()) return;
  for (const Link link : std::set<Link>(agents_.askers())) {
    take_up(link, {});
  }
  if (!roster_.assembled()) askers_next_ = job_.now + job_.options.host_silence;
}

// The agent that owns the place, or that speaks for it before the ranks are given. Null: it is not
// here, or there is none.
const Agent* Owners::owner_here(const std::string& node_id) const {
  const Rank rank = roster_.rank_of(node_id);
  if (rank == kNoRank) return agents_.speaker(node_id);
  const Link here = agents_.link_of(roster_.at(rank).seat.agent);
  return here == 0 ? nullptr : &agents_.at(here);
}

// Before the ranks are given, no host counts as lost. But an agent's host that is silent may be
// lost and started again, so then the asker gets the place.
Owners::Right Owners::right_to(const std::string& node_id, const Agent& asker) const {
  const Rank rank = roster_.rank_of(node_id);
  if (rank == kNoRank) {
    const Agent* other = agents_.speaker(node_id);
    if (other == nullptr || other->agent_id == asker.agent_id) return Right::kIts;
    const bool may_be_lost = other->beats && job_.options.host_silence != Duration{};
    const bool is_lost = may_be_lost && job_.now >= other->heard + job_.options.host_silence;
    return is_lost ? Right::kIts : Right::kNotYet;
  }
  const Member& member = roster_.at(rank);
  const std::string& owner = member.seat.agent;
  if (owner.empty() || owner == asker.agent_id) return Right::kIts;
  if (member.is_free && !is_drained(asker.agent_id)) return Right::kIts;
  const bool is_here = agents_.link_of(owner) != 0;
  if (member.seat.given && (is_here || job_.watches_hosts())) return Right::kLost;
  if (is_drained(asker.agent_id)) return Right::kLost;
  const bool has_owner = is_here || agents_.is_awaited(owner, asker.host);
  return has_owner ? Right::kNotYet : Right::kIts;
}

// From now on this agent owns the place.
void Owners::own(Rank rank, const std::string& agent_id) {
  const Member& member = roster_.at(rank);
  const std::string former = member.seat.agent;
  if (former == agent_id && !member.is_free) return;
  roster_.alter(member, [&](Member& changed) {
    changed.seat.agent = agent_id;
    changed.is_free = false;
    changed.seat.given = changed.seat.given || (!former.empty() && former != agent_id);
  });
  if (former == agent_id) return;
  have_changed_ = true;
  if (!former.empty()) retire(member);
}

// Every change of owners has to be stored before this is called.
void Owners::tell_owners() {
  for (const auto& [link, rank] : std::exchange(retired_, {})) {
    job_.refuse(link, {.kind = Reason::Kind::kNewerProcess, .rank = rank});
  }
  for (const Link link : agents_.take_untold()) {
    if (Agent* agent = agents_.find(link)) tell_places(link, *agent);
  }
}

// Tells the agent which places it has, if its table says otherwise. Places that it asks for are
// among them, so that it goes on asking, unless it is drained.
void Owners::tell_places(Link link, Agent& agent) {
  wire::Places places{.node_ids = lacking(agent), .drains = is_drained(agent.agent_id)};
  const bool has_not_heard = places.drains && (agent.takes > 0 || !agent.asks.empty());
  const bool has_others = std::exchange(agent.has_others, false);
  if (places.node_ids.empty() && !has_others && !has_not_heard) return;
  places.node_ids.insert(places.node_ids.end(), agent.nodes.begin(), agent.nodes.end());
  for (const auto& place : agent.asks) {
    if (!places.drains) places.node_ids.push_back(place.node_id);
  }
  job_.send(link, std::move(places));
}

// The process in this seat has lost it for good, even if it lives: it hears so when it speaks. The
// attempt is reset, since the new agent counts anew. A process of that agent may take the seat at
// once.
void Owners::retire(const Member& member) {
  if (member.seat.incarnation == 0) return;
  roster_.alter(member,
                [](Member& changed) { changed.seat.incarnation = changed.seat.attempt = 0; });
  if (member.link != 0) retired_.emplace_back(member.link, member.rank);
  if (member.lease_runs()) {
    membership_.died(member, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  } else if (member.state == SeatState::kSilent) {
    membership_.detach(member);
    roster_.advance(member, SeatEvent::kDied);
  }
}

void Owners::answer_askers_in_time() {
  const bool asks = formation_.stage == Stage::kAssembling && !agents_.askers().empty();
  if (!asks || job_.now < askers_next_) return;
  have_changed_ = true;  // An owner may have become silent.
  answer_askers();       // This may begin the job, or end it.
}

std::optional<Instant> Owners::deadline() const {
  const bool asks = !agents_.askers().empty() && job_.options.host_silence != Duration{};
  return asks ? std::optional(askers_next_) : std::nullopt;
}

void Owners::free_places(const Agent& lost) {
  set_free(lost.agent_id, true);
  if (!roster_.owned_by(lost.agent_id).empty()) lost_[lost.agent_id] = lost.host;
}

void Owners::take_back(const std::string& agent_id) {
  set_free(agent_id, false);
  lost_.erase(agent_id);
}

void Owners::set_free(const std::string& agent_id, bool free) {
  have_changed_ = true;
  for (const Rank rank : std::set<Rank>(roster_.owned_by(agent_id))) {
    roster_.alter(roster_.at(rank), [free](Member& changed) { changed.is_free = free; });
  }
}

std::vector<std::string> Owners::lacking(const Agent& agent) const {
  std::vector<std::string> node_ids;
  for (const Rank rank : roster_.owned_by(agent.agent_id)) {
    const wire::Seat& seat = roster_.at(rank).seat;
    if (!seat.finished && !agent.nodes.contains(seat.node_id)) node_ids.push_back(seat.node_id);
  }
  return node_ids;
}

bool Owners::is_drained(const std::string& agent_id) const {
  const auto& drained = formation_.drained;
  return std::find(drained.begin(), drained.end(), agent_id) != drained.end();
}

bool Owners::takes(const Agent& agent, std::size_t places) const {
  return !agent.is_silent && agent.takes >= places && lacking(agent).empty() &&
         !is_drained(agent.agent_id);
}

// The agent that would take so many places and has the fewest, so that a spare host comes first; 0:
// none would. It is not on host `not_on`, and is on host `only_on`, unless these are empty.
Link Owners::host_for(std::size_t places, const std::string& not_on,
                      const std::string& only_on) const {
  Link best = 0;
  std::size_t least = 0;
  for (const auto& [link, agent] : agents_.here()) {
    if (!takes(agent, places) || (!not_on.empty() && agent.host == not_on)) continue;
    if (!only_on.empty() && agent.host != only_on) continue;
    if (best != 0 && agent.nodes.size() >= least) continue;
    best = link;
    least = agent.nodes.size();
  }
  return best;
}

void Owners::hand_over(const std::set<Rank>& ranks, Link heir) {
  const std::string agent_id = agents_.at(heir).agent_id;
  for (const Rank rank : ranks) {
    agents_.forget_word(roster_.at(rank).seat.node_id);
    own(rank, agent_id);
  }
  job_.store();
  agents_.set_untold(heir);
  tell_owners();
  answer_askers();
}

// By memory: those of `ranks` whose places are free and needed.
std::map<std::string, std::set<Rank>> Owners::free_by_memory(const std::set<Rank>& ranks) const {
  std::map<std::string, std::set<Rank>> groups;
  for (const Rank rank : ranks) {
    if (!roster_.free().contains(rank) || roster_.at(rank).seat.finished) continue;
    groups[roster_.at(rank).seat.memory].insert(rank);
  }
  return groups;
}

void Owners::assign_free_places() {
  while (!job_.has_ended() && !roster_.free().empty()) {
    const auto groups = free_by_memory(roster_.free());
    const auto taken = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return host_for(group.second.size(), "", "") != 0;
    });
    if (taken == groups.end()) return;
    const Link heir = host_for(taken->second.size(), "", "");
    tell_lost(taken->second, agents_.at(heir).host);
    hand_over(taken->second, heir);
  }
}

void Owners::tell_not_taken(const std::set<Rank>& ranks) {
  for (const auto& [memory, group] : free_by_memory(ranks)) tell_lost(group, "");
}

// Tells every agent that these ranks' host is lost, and which host takes the places; empty: none.
void Owners::tell_lost(const std::set<Rank>& ranks, const std::string& heir) {
  const wire::Seat& seat = roster_.at(*ranks.begin()).seat;
  const auto host = lost_.find(seat.agent);
  job_.tell_agents(wire::Waiting{{.kind = Reason::Kind::kHostLost,
                                  .count = static_cast<std::int64_t>(ranks.size()),
                                  .host = host != lost_.end() ? host->second : seat.host,
                                  .other_host = heir}});
}

}  // namespace holdfast::controller
