// What agents say of their places.
#include <algorithm>

#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

void Machine::receive(Link link, const wire::AgentState& m) {
  if (m.protocol != wire::kProtocol) {
    return refuse(
        link,
        {.kind = Reason::Kind::kOtherProtocol, .count = m.protocol, .total = wire::kProtocol});
  }
  if (m.job != formation_.job) {
    return refuse(link,
                  {.kind = Reason::Kind::kOtherJob, .other = m.job, .detail = formation_.job});
  }
  if (formation_.stage == Stage::kEnded) {
    if (!is_own_agent(m.agent_id)) return tell_end(link);
    leaves_at_.reset();
    tell_end(link);
    dismiss(link);
    return leave();
  }
  if (auto why = too_much(m, static_cast<std::size_t>(options_.world_size))) {
    return reject(link, *std::move(why));
  }
  // The same agent may come back before the end of its former connection is known.
  if (const Link former = agents_.link_of(m.agent_id); former != 0 && former != link) {
    dismiss(former);
    forget_agent(former);
  }
  Agent& agent = agents_.enter(link, m.agent_id);
  const bool is_new = !std::exchange(agent.is_told, true);
  if (is_new) progress_told_.reset();  // It is told with all others.
  agent.host = m.host;
  agent.takes = m.takes;
  agent.spares = m.spares;
  hear_agent(agent);
  look_at_hosts(now_ + options_.host_silence);
  if (agent.book != book_.name()) {
    receive(link, wire::AskAddresses{});
    if (peers_.at(link).dismissed) return;  // It has asked for more than it may.
  }
  const auto former = agents_.take_words(link);
  agents_.set_asks(link, m.places);
  agent.has_others = false;
  if (is_new) tell_who_has_them(link);
  take_up(link, former);
  assign_free_places();
  answer_askers();
  maybe_balance();
  maybe_nobody_came();
}

// Whose places this agent asks for. It waits for them, in case that one is lost.
void Machine::tell_who_has_them(Link link) {
  const Agent& agent = agents_.at(link);
  for (const auto& place : agent.asks) {
    if (right_to(place.node_id, agent) != Right::kNotYet) continue;
    const Agent* other = owner_here(place.node_id);
    if (other == nullptr) continue;
    return send(link, wire::Waiting{{.kind = Reason::Kind::kNotItsPlace,
                                     .node_id = place.node_id,
                                     .other = other->agent_id,
                                     .other_host = other->host}});
  }
}

// Why this can not be the table of an agent of the job, which has so many places.
std::optional<Reason> Machine::too_much(const wire::AgentState& m, std::size_t places) {
  const auto more_than = [](std::size_t count, std::size_t most, const char* what) {
    const Reason why{.kind = Reason::Kind::kTooMuch,
                     .count = static_cast<std::int64_t>(count),
                     .total = static_cast<std::int64_t>(most),
                     .detail = what};
    return count > most ? std::optional(why) : std::nullopt;
  };
  auto why = excess({&m.agent_id, &m.host});
  if (!why) why = more_than(m.places.size(), places, "places");
  if (!why) why = more_than(m.spares.size(), places + kMaxSparesMore, "spares");
  for (const auto& place : m.places) {
    if (!why) why = excess({&place.node_id});
  }
  for (const auto& spare : m.spares) {
    if (!why) why = excess({&spare.node_id});
  }
  return why;
}

// What the agent asks for becomes its own as far as nobody else has it, and what it says of its
// places is heard. `former`: what it has said of them before.
void Machine::take_up(Link link, const std::map<std::string, PlaceWord>& former) {
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
    if (!roster_.assembled()) forget_arrival(node_id);
  }
  for (const auto& place : taken) {
    if (const Rank rank = roster_.rank_of(place.node_id); rank != kNoRank)
      own(rank, agent.agent_id);
  }
  if (formation_.stage == Stage::kEnded) return;
  if (roster_.has_changed()) store();
  agents_.set_untold(link);
  tell_owners();
  for (const auto& place : taken) {
    const auto before = former.find(place.node_id);
    if (before == former.end() || before->second.place != place) apply_word(place);
  }
  if (may_assemble()) assemble();
}

// Its host is lost before the ranks are given. Whoever takes its place counts attempts anew.
void Machine::forget_arrival(const std::string& node_id) {
  if (const auto early = roster_.arrivals().find(node_id); early != roster_.arrivals().end()) {
    died(early->second, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  }
}

// Those who ask for places of others may have them by now, if some place has lost its owner.
void Machine::answer_askers() {
  if (!std::exchange(owners_have_changed_, false) || formation_.stage == Stage::kEnded) return;
  for (const Link link : std::set<Link>(agents_.askers())) {
    take_up(link, {});
  }
  if (!roster_.assembled()) askers_next_ = now_ + options_.host_silence;
}

void Machine::forget_agent(Link link) {
  auto agent = agents_.remove(link);
  if (!agent) return;
  owners_have_changed_ = true;
  if (!agent->is_silent) miss_agent(*std::move(agent));
}

bool Machine::is_own_agent(const std::string& agent_id) const {
  return agent_id.starts_with(options_.own_agent);
}

bool Machine::speaks_for_a_place(Link link) const {
  const Agent* agent = agents_.find(link);
  if (agent == nullptr) return false;
  const auto& nodes = agent->nodes;
  return std::any_of(nodes.begin(), nodes.end(), [&](const std::string& node_id) {
    return !roster_.assembled() || roster_.rank_of(node_id) != kNoRank;
  });
}

void Machine::evict(const Member& member) {
  const PlaceWord* word = agents_.word_on(member.seat.node_id);
  if (word == nullptr) return;
  send(word->link, wire::Evict{member.seat.node_id, member.seat.incarnation});
}

// What an agent said of a process may have come before the process's own Register.
void Machine::apply_word_on(const std::string& node_id) {
  if (const PlaceWord* word = agents_.word_on(node_id)) apply_word(wire::PlaceState(word->place));
}

void Machine::apply_word(const wire::PlaceState& place) {
  const Rank rank = roster_.rank_of(place.node_id);
  const auto early = roster_.arrivals().find(place.node_id);
  if (rank == kNoRank && early == roster_.arrivals().end()) return answer_waiting(place.node_id);
  const Member& member = rank != kNoRank ? roster_.at(rank) : early->second;
  tell_how(member, place);
  const wire::Seat& seat = member.seat;
  const bool same = place.attempt == seat.attempt && place.incarnation == seat.incarnation;
  // Its agent has given the place to a later process, or never to this one.
  const bool replaced = seat.attempt != 0 && place.attempt >= seat.attempt && !same;
  const bool well = place.ending == wire::Ending{wire::Ending::Kind::kExited, 0};
  if (same && place.alive) {
    const bool lost =
        member.ending.kind == wire::Ending::Kind::kNotHeard || member.state == SeatState::kDead;
    if (lost && !member.lease_runs()) evict(member);  // It may have missed the first.
  } else if (same || replaced) {
    died(member, place.ending, same && well, place.detected_ns);
    if (rank == kNoRank) return;  // It made room, and is no more.
    if (member.state == SeatState::kOrphaned && !place.alive && well) {
      // The successor has left without a word, and its agent gives the place to nobody else.
      roster_.advance(member, SeatEvent::kEndedWell);
      maybe_all_left();
    }
  }  // Else it was said before this incarnation was accepted.
  answer_waiting(place.node_id);
}

// A death is told at once. Its agent learns how it came only when the memory is gone.
void Machine::tell_how(const Member& member, const wire::PlaceState& place) {
  if (place.detected_ns == 0 || place.detected_ns != member.detected_ns) return;
  const Rank rank = roster_.rank_of(place.node_id);
  if (place.ending == member.ending || rank == kNoRank) return;
  roster_.alter(member, [&](Member& changed) { changed.ending = place.ending; });
  note(Note::Kind::kHow, rank,
       {.kind = Reason::Kind::kRankLost,
        .rank = rank,
        .pid = member.ended_pid,
        .ending = member.ending});
}

}  // namespace holdfast::controller
