// Whose places are whose. The scheduler grants them: a place without a living owner goes to an
// agent that takes places of others, or to whoever asks for it. A seat names its owner, and that is
// on record before anybody hears of it. An agent is told which places it has (Places) whenever its
// own table says otherwise.
#include <algorithm>
#include <utility>

#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

bool begins_anew(const planner::Plan& plan) {
  return std::any_of(plan.orders.begin(), plan.orders.end(),
                     [](const auto& order) { return order.act == wire::Act::kBegin; });
}

}  // namespace

// The agent, if it is here, whose place it is, or that speaks for it before the ranks are given.
const Agent* Machine::owner_here(const std::string& node_id) const {
  const Rank rank = roster_.rank_of(node_id);
  if (rank == kNoRank) return agents_.speaker(node_id);
  const Link here = agents_.link_of(roster_.at(rank).seat.agent);
  return here == 0 ? nullptr : &agents_.at(here);
}

// Before the ranks are given, no host counts as lost. But a silent one may be, and started again.
Machine::Right Machine::right_to(const std::string& node_id, const Agent& asker) const {
  const Rank rank = roster_.rank_of(node_id);
  if (rank == kNoRank) {
    const Agent* other = agents_.speaker(node_id);
    if (other == nullptr || other->agent_id == asker.agent_id) return Right::kIts;
    const bool may_be_lost = other->beats && options_.host_silence != Duration{};
    const bool is_lost = may_be_lost && now_ >= other->heard + options_.host_silence;
    return is_lost ? Right::kIts : Right::kNotYet;
  }
  const Member& member = roster_.at(rank);
  const std::string& owner = member.seat.agent;
  if (owner.empty() || owner == asker.agent_id) return Right::kIts;
  if (member.is_free && !is_drained(asker.agent_id)) return Right::kIts;
  const bool is_here = agents_.link_of(owner) != 0;
  if (member.seat.given && (is_here || watches_hosts())) return Right::kLost;
  if (is_drained(asker.agent_id)) return Right::kLost;
  const bool has_owner = is_here || agents_.is_awaited(owner, asker.host);
  return has_owner ? Right::kNotYet : Right::kIts;
}

// The agent speaks for this place, and may.
void Machine::own(Rank rank, const std::string& agent_id) {
  const Member& member = roster_.at(rank);
  const std::string former = member.seat.agent;
  if (former == agent_id && !member.is_free) return;
  roster_.alter(member, [&](Member& changed) {
    changed.seat.agent = agent_id;
    changed.is_free = false;
    changed.seat.given = changed.seat.given || (!former.empty() && former != agent_id);
  });
  if (former == agent_id) return;
  owners_have_changed_ = true;
  if (!former.empty()) retire(member);
}

// What was changed is stored first.
void Machine::tell_owners() {
  for (const auto& [link, rank] : std::exchange(retired_, {})) {
    refuse(link, {.kind = Reason::Kind::kNewerProcess, .rank = rank});
  }
  for (const Link link : agents_.take_untold()) {
    if (Agent* agent = agents_.find(link)) tell_places(link, *agent);
  }
}

// Which places the agent has, if its table says otherwise. It keeps those that it asks for, too.
void Machine::tell_places(Link link, Agent& agent) {
  wire::Places places{.node_ids = lacking(agent), .drains = is_drained(agent.agent_id)};
  const bool has_not_heard = places.drains && (agent.takes > 0 || !agent.asks.empty());
  const bool has_others = std::exchange(agent.has_others, false);
  if (places.node_ids.empty() && !has_others && !has_not_heard) return;
  places.node_ids.insert(places.node_ids.end(), agent.nodes.begin(), agent.nodes.end());
  for (const auto& place : agent.asks) {
    if (!places.drains) places.node_ids.push_back(place.node_id);
  }
  send(link, std::move(places));
}

// Whoever had the place has lost it for good, even if it lives: it hears so when it speaks. Another
// agent counts its attempts anew. A process of that one may have the place at once.
void Machine::retire(const Member& member) {
  if (member.seat.incarnation == 0) return;
  roster_.alter(member,
                [](Member& changed) { changed.seat.incarnation = changed.seat.attempt = 0; });
  if (member.link != 0) retired_.emplace_back(member.link, member.rank);
  if (member.lease_runs()) {
    died(member, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  } else if (member.state == SeatState::kSilent) {
    detach(member);
    roster_.advance(member, SeatEvent::kDied);
  }
}

void Machine::free_places(const std::string& agent_id, bool free) {
  owners_have_changed_ = true;
  if (!free) lost_.erase(agent_id);
  for (const Rank rank : std::set<Rank>(roster_.owned_by(agent_id))) {
    roster_.alter(roster_.at(rank), [free](Member& changed) { changed.is_free = free; });
  }
}

// Places that it owns, and that its table lacks.
std::vector<std::string> Machine::lacking(const Agent& agent) const {
  std::vector<std::string> node_ids;
  for (const Rank rank : roster_.owned_by(agent.agent_id)) {
    const wire::Seat& seat = roster_.at(rank).seat;
    if (!seat.finished && !agent.nodes.contains(seat.node_id)) node_ids.push_back(seat.node_id);
  }
  return node_ids;
}

bool Machine::is_drained(const std::string& agent_id) const {
  const auto& drained = formation_.drained;
  return std::find(drained.begin(), drained.end(), agent_id) != drained.end();
}

bool Machine::takes(const Agent& agent, std::size_t places) const {
  return !agent.is_silent && agent.takes >= places && lacking(agent).empty() &&
         !is_drained(agent.agent_id);
}

// Who would take so many places: the least loaded one, so a spare host before all others. It is not
// on host `not_on`, and on host `only_on`, if that is said.
Link Machine::host_for(std::size_t places, const std::string& not_on,
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

// It is on record before anybody hears of it.
void Machine::hand_over(const std::set<Rank>& ranks, Link heir) {
  const std::string agent_id = agents_.at(heir).agent_id;
  for (const Rank rank : ranks) {
    agents_.forget_word(roster_.at(rank).seat.node_id);
    own(rank, agent_id);
  }
  store();
  agents_.set_untold(heir);
  tell_owners();
  answer_askers();
}

// Those of these ranks whose places are free and needed, by memory.
std::map<std::string, std::set<Rank>> Machine::free_by_memory(const std::set<Rank>& ranks) const {
  std::map<std::string, std::set<Rank>> groups;
  for (const Rank rank : ranks) {
    if (!roster_.free().contains(rank) || roster_.at(rank).seat.finished) continue;
    groups[roster_.at(rank).seat.memory].insert(rank);
  }
  return groups;
}

// The places of lost hosts go to hosts that would take them: those of one host to one.
void Machine::assign_free_places() {
  while (formation_.stage != Stage::kEnded && !roster_.free().empty()) {
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

// On every host: what became of these ranks' host.
void Machine::tell_lost(const std::set<Rank>& ranks, const std::string& heir) {
  const wire::Seat& seat = roster_.at(*ranks.begin()).seat;
  const auto host = lost_.find(seat.agent);
  tell_agents(wire::Waiting{{.kind = Reason::Kind::kHostLost,
                             .count = static_cast<std::int64_t>(ranks.size()),
                             .host = host != lost_.end() ? host->second : seat.host,
                             .other_host = heir}});
}

// ---- Places of a host that lives ----------------------------------------------------------------

// Why that can not be; else `transfer` is what is to be done.
std::optional<Reason> Machine::plan_move(const wire::Move& m, Transfer& transfer) const {
  const Reason not_now{.kind = Reason::Kind::kNotNow, .host = m.from};
  if (!roster_.assembled() || transfer_ || ended_ != kNoRank) return not_now;
  for (const auto& [link, agent] : agents_.here()) {
    if (agent.host != m.from || agent.is_silent) continue;
    if (!lacking(agent).empty()) return not_now;
    transfer.agents.insert(agent.agent_id);
    const std::set<Rank>& owned = roster_.owned_by(agent.agent_id);
    transfer.ranks.insert(owned.begin(), owned.end());
  }
  if (transfer.agents.empty() || (transfer.ranks.empty() && !m.drains)) {
    return Reason{.kind = Reason::Kind::kNoSuchHost, .host = m.from};
  }
  const auto ranks = static_cast<std::int64_t>(transfer.ranks.size());
  const std::size_t drained = formation_.drained.size() + transfer.agents.size();
  if (m.drains && drained > wire::kMaxListLength) {
    return Reason{.kind = Reason::Kind::kTooMuch,
                  .count = static_cast<std::int64_t>(drained),
                  .total = static_cast<std::int64_t>(wire::kMaxListLength),
                  .detail = "drained agents"};
  }
  transfer.drains = m.drains;
  transfer.what = {
      .kind = Reason::Kind::kMoves, .count = ranks, .host = m.from, .other_host = m.to};
  if (transfer.ranks.empty()) return std::nullopt;
  transfer.heir = host_for(transfer.ranks.size(), m.from, m.to);
  if (transfer.heir == 0) {
    return Reason{
        .kind = Reason::Kind::kNobodyTakes, .count = ranks, .host = m.from, .other_host = m.to};
  }
  transfer.what.other_host = agents_.at(transfer.heir).host;
  return std::nullopt;
}

void Machine::receive(Link link, const wire::Move& m) {
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  if (const auto why = excess({&m.from, &m.to})) return reject(link, *why);
  Transfer transfer;
  if (auto why = plan_move(m, transfer)) return send(link, wire::Moved{*std::move(why)});
  if (transfer.ranks.empty()) {  // A spare host.
    drain(transfer);
    store();
    for (const auto& agent_id : transfer.agents) agents_.set_untold(agents_.link_of(agent_id));
    tell_owners();
    return send(link, wire::Moved{std::move(transfer.what)});
  }
  transfer.asker = link;
  transfer_ = std::move(transfer);
  begin_transfer();
}

// All stop at a step's boundary, and say what they hold. Between two such stops all make a step.
void Machine::begin_transfer() {
  const bool runs = formation_.stage == Stage::kRunning && unproven_.empty();
  if (transfer_ && runs) begin(transfer_->what);
}

void Machine::drain(const Transfer& transfer) {
  for (const auto& agent_id : transfer.agents) {
    if (!is_drained(agent_id)) formation_.drained.push_back(agent_id);
  }
}

// What became of it, if somebody has asked.
void Machine::answer_transfer(const Transfer& transfer, Reason reason) {
  if (formation_.cause == transfer.what)
    formation_.cause = reason;  // Else there is a fault as well.
  if (transfer.asker != 0) send(transfer.asker, wire::Moved{std::move(reason)});
}

// All have reported. Whether places go to another host before there is a plan: only if the job can
// go on from the same version with what is elsewhere, and nothing begins anew, not even a private
// part.
bool Machine::carry_out_transfer(const std::set<Rank>& disbelieved) {
  const auto transfer = std::exchange(transfer_, std::nullopt);
  if (!transfer) return false;
  const Agent* heir = agents_.find(transfer->heir);
  const bool same = std::all_of(transfer->ranks.begin(), transfer->ranks.end(), [&](Rank rank) {
    const Agent* speaker = agents_.speaker(roster_.at(rank).seat.node_id);
    return speaker != nullptr && transfer->agents.contains(speaker->agent_id);
  });
  // A rank that has ended may have left, and with it what it would give.
  const bool ends = ended_rank() != kNoRank;
  if (!same || ends || heir == nullptr || !takes(*heir, transfer->ranks.size())) {
    answer_transfer(*transfer, {.kind = Reason::Kind::kNotNow, .host = transfer->what.host});
    return false;
  }
  const auto plan = planner::plan(table(disbelieved, {}));
  const auto without = planner::plan(table(disbelieved, transfer->ranks));
  const bool anew = begins_anew(without) && !begins_anew(plan);
  if (!without.possible || without.version != plan.version || anew) {
    const Rank rank = without.possible ? *transfer->ranks.begin() : without.lacking;
    answer_transfer(*transfer, {.kind = Reason::Kind::kNotHeld, .rank = rank});
    return false;
  }
  emptied_.insert(transfer->agents.begin(), transfer->agents.end());
  if (transfer->drains) drain(*transfer);
  hand_over(transfer->ranks, transfer->heir);
  answer_transfer(*transfer, transfer->what);
  return true;
}

// A host that has others' places besides its own gets rid of them once there is one with fewer.
void Machine::maybe_balance() {
  if (roster_.given().empty() || transfer_ || formation_.stage != Stage::kRunning) return;
  if (!has_proven_ || !unproven_.empty() || ended_ != kNoRank) return;
  std::map<std::string, std::set<Rank>> by_owner;
  for (const Rank rank : roster_.given()) by_owner[roster_.at(rank).seat.agent].insert(rank);
  for (const auto& [owner, given] : by_owner) {
    const Link link = agents_.link_of(owner);
    const std::set<Rank>& owned = roster_.owned_by(owner);
    if (link == 0 || given.size() == owned.size()) continue;  // It has none of its own.
    const Agent& full = agents_.at(link);
    for (const auto& [heir_link, heir] : agents_.here()) {
      const bool is_better = heir.nodes.size() + given.size() < full.nodes.size();
      if (!is_better || full.host == heir.host || emptied_.contains(heir.agent_id)) continue;
      if (!takes(heir, given.size())) continue;
      emptied_.insert(heir.agent_id);
      transfer_ = {.ranks = given,
                   .agents = {owner},
                   .heir = heir_link,
                   .what = {.kind = Reason::Kind::kMoves,
                            .count = static_cast<std::int64_t>(given.size()),
                            .host = full.host,
                            .other_host = heir.host}};
      return begin_transfer();
    }
  }
}

}  // namespace holdfast::controller
