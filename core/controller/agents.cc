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
  const Way way = make_way(link, m);
  if (!way.is_free) return;
  std::vector<wire::PlaceState> changed;
  std::map<std::string, PlaceWord> former;
  for (const auto& node_id : agents_[link].nodes) former.insert(place_words_.extract(node_id));
  Agent agent{.agent_id = m.agent_id, .host = m.host, .nodes = {}, .takes = m.takes};
  for (const auto& place : m.places) {
    if (std::find(way.too_late.begin(), way.too_late.end(), place.node_id) != way.too_late.end()) {
      continue;
    }
    const auto before = former.find(place.node_id);
    if (before == former.end() || before->second.place != place) changed.push_back(place);
    agent.nodes.push_back(place.node_id);
    place_words_[place.node_id] = {link, place};
  }
  if (!agents_[link].is_told) progress_told_.reset();  // It is told with all others.
  agent.is_told = true;
  agent.heard = agents_[link].heard;
  agent.gap = agents_[link].gap;
  agent.beats = agents_[link].beats;
  agent.book = agents_[link].book;
  hear_agent(agent);
  look_at_hosts(now_ + options_.host_silence);
  std::erase_if(missing_, [&](const Agent& missed) { return missed.agent_id == m.agent_id; });
  const bool knows = agent.book == book_.name();
  forget_link(agents_[link].agent_id, link);
  agent_links_[m.agent_id] = link;
  agents_[link] = std::move(agent);
  if (!knows) receive(link, wire::AskAddresses{});
  settle_places(link, way.too_late);
  for (const auto& place : changed) heed(place);
  if (may_assemble()) assemble();
  house();
  judge_rivals();
  maybe_balance();
  maybe_nobody_came();
}

Reason Machine::not_its_place(const std::string& node_id, const Agent& other) {
  return {.kind = Reason::Kind::kNotItsPlace,
          .node_id = node_id,
          .other = other.agent_id,
          .other_host = other.host};
}

// Why this can not be the table of an agent of the job, which has so many places.
std::optional<Reason> Machine::too_much(const wire::AgentState& m, std::size_t places) {
  if (m.places.size() > places) {
    return Reason{.kind = Reason::Kind::kTooMuch,
                  .count = static_cast<std::int64_t>(m.places.size()),
                  .total = static_cast<std::int64_t>(places),
                  .detail = "places"};
  }
  auto why = excess({&m.agent_id, &m.host});
  for (const auto& place : m.places) {
    if (!why) why = excess({&place.node_id});
  }
  return why;
}

// Whether this agent may speak for the other places in its table. The same agent may come back
// before the end of its former connection is known.
Machine::Way Machine::make_way(Link link, const wire::AgentState& m) {
  const auto rival = rivals_.extract(link);
  const Instant since = rival.empty() ? now_ : rival.mapped().since;
  auto why = too_much(m, static_cast<std::size_t>(options_.world_size));
  Way way;
  std::set<Link> former;
  for (const auto& place : m.places) {
    if (why) break;
    const Claim claim = judge_claim(place.node_id, m, since);
    if (claim == Claim::kNever) why = not_its_place(place.node_id, *owner_here(place.node_id));
    if (claim == Claim::kTooLate) way.too_late.push_back(place.node_id);
    if (claim == Claim::kWaits) {
      rivals_[link] = {m, since};
      return {};
    }
    const auto word = place_words_.find(place.node_id);
    if (claim == Claim::kIts && word != place_words_.end() && word->second.link != link) {
      former.insert(word->second.link);
    }
  }
  if (why) {
    reject(link, *std::move(why));
    return {};
  }
  if (const Link before = link_of_agent(m.agent_id); before != 0 && before != link) {
    former.insert(before);
  }
  for (const Link other : former) {
    const Agent displaced = agents_.at(other);
    dismiss(other);
    if (!assembled() && displaced.agent_id != m.agent_id) forget_arrivals(displaced.nodes);
  }
  way.is_free = true;
  return way;
}

// Its host is lost before the ranks are given. Whoever takes its places counts attempts anew.
void Machine::forget_arrivals(const std::vector<std::string>& nodes) {
  for (const auto& node_id : nodes) {
    if (const auto early = arrivals_.find(node_id); early != arrivals_.end()) {
      died(early->second, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
    }
  }
}

// It is the link of this agent no more.
void Machine::forget_link(const std::string& agent_id, Link link) {
  const auto here = agent_links_.find(agent_id);
  if (here != agent_links_.end() && here->second == link) agent_links_.erase(here);
}

void Machine::forget_agent(Link link) {
  auto agent = agents_.extract(link);
  if (agent.empty()) return;
  forget_link(agent.mapped().agent_id, link);
  for (const auto& node_id : agent.mapped().nodes) place_words_.erase(node_id);
  if (!agent.mapped().is_silent) miss_agent(std::move(agent.mapped()));
}

bool Machine::is_own_agent(const std::string& agent_id) const {
  return agent_id.starts_with(options_.own_agent);
}

bool Machine::speaks_for_a_place(Link link) const {
  const auto agent = agents_.find(link);
  if (agent == agents_.end()) return false;
  const auto& nodes = agent->second.nodes;
  return std::any_of(nodes.begin(), nodes.end(), [&](const std::string& node_id) {
    return !assembled() || rank_of(node_id) != kNoRank;
  });
}

Machine::Word Machine::word_on(const wire::Register& m) const {
  if (m.attempt == 0) return Word::kGiven;  // No agent has started it.
  const auto word = place_words_.find(m.node_id);
  if (word == place_words_.end()) return Word::kNone;
  const wire::PlaceState& place = word->second.place;
  const bool same = m.attempt == place.attempt && m.incarnation == place.incarnation;
  if (same) return Word::kGiven;
  if (m.attempt > place.attempt || is_of_rival(m)) return Word::kNotYet;
  return m.attempt < place.attempt ? Word::kFormer : Word::kNever;
}

// Its agent claims the place, and that is to be judged.
bool Machine::is_of_rival(const wire::Register& m) const {
  return std::any_of(rivals_.begin(), rivals_.end(), [&](const auto& rival) {
    const auto& places = rival.second.claim.places;
    return std::any_of(places.begin(), places.end(), [&](const wire::PlaceState& place) {
      return place.node_id == m.node_id && place.incarnation == m.incarnation;
    });
  });
}

void Machine::evict(const Member& member) {
  const auto word = place_words_.find(member.seat.node_id);
  if (word == place_words_.end()) return;
  send(word->second.link, wire::Evict{member.seat.node_id, member.seat.incarnation});
}

// What an agent said of a process may have come before the process's own Register.
void Machine::heed_agent(const std::string& node_id) {
  if (const auto word = place_words_.find(node_id); word != place_words_.end()) {
    heed(wire::PlaceState(word->second.place));
  }
}

void Machine::heed(const wire::PlaceState& place) {
  const Rank rank = rank_of(place.node_id);
  const auto early = arrivals_.find(place.node_id);
  if (rank == kNoRank && early == arrivals_.end()) return answer_waiting(place.node_id);
  Member& member = rank != kNoRank ? at(rank) : early->second;
  tell_how(member, place);
  const wire::Seat& seat = member.seat;
  const bool same = place.attempt == seat.attempt && place.incarnation == seat.incarnation;
  // Its agent has given the place to a later process, or never to this one.
  const bool replaced = seat.attempt != 0 && place.attempt >= seat.attempt && !same;
  const bool well = place.ending == wire::Ending{wire::Ending::Kind::kExited, 0};
  if (same && place.alive) {
    const bool lost =
        member.ending.kind == wire::Ending::Kind::kNotHeard || member.state == SeatState::kDead;
    if (lost && !lease_runs(member)) evict(member);  // It may have missed the first.
  } else if (same || replaced) {
    died(member, place.ending, same && well, place.detected_ns);
    if (rank == kNoRank) return;  // It made room, and is no more.
    if (member.state == SeatState::kOrphaned && !place.alive && well) {
      // The successor has left without a word, and its agent gives the place to nobody else.
      advance(member, SeatEvent::kEndedWell);
      maybe_all_left();
    }
  }  // Else it was said before this incarnation was accepted.
  answer_waiting(place.node_id);
}

// A death is told at once. Its agent learns how it came only when the memory is gone.
void Machine::tell_how(Member& member, const wire::PlaceState& place) {
  if (place.detected_ns == 0 || place.detected_ns != member.detected_ns) return;
  const Rank rank = rank_of(place.node_id);
  if (place.ending == member.ending || rank == kNoRank) return;
  member.ending = place.ending;
  note(Note::Kind::kHow, rank,
       {.kind = Reason::Kind::kRankLost,
        .rank = rank,
        .pid = member.ended_pid,
        .ending = member.ending});
}

}  // namespace holdfast::controller
