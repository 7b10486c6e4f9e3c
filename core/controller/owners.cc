// Whose places are whose. A seat names its owner, an agent, and that is on record. Where the owner
// is lost, its places are free: for a host that would take them, or for whoever claims them. What
// an agent has to do follows from its table: places that it lacks are given to it (Give), places
// that are another one's by now are dropped (Drop), as often as it takes.
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

const Agent* Machine::speaker(const std::string& node_id) const {
  const auto word = place_words_.find(node_id);
  return word == place_words_.end() ? nullptr : &agents_.at(word->second.link);
}

// The agent, if it is here, whose place it is, or that speaks for it before the ranks are given.
const Agent* Machine::owner_here(const std::string& node_id) const {
  const Rank rank = rank_of(node_id);
  if (rank == kNoRank) return speaker(node_id);
  const Link here = link_of_agent(at(rank).seat.agent);
  return here == 0 ? nullptr : &agents_.at(here);
}

Link Machine::link_of_agent(const std::string& agent_id) const {
  const auto found = agent_links_.find(agent_id);
  return found == agent_links_.end() ? 0 : found->second;
}

Machine::Claim Machine::judge_claim(const std::string& node_id, const wire::AgentState& m,
                                    Instant since) const {
  const Rank rank = rank_of(node_id);
  if (rank == kNoRank) {
    const Agent* other = speaker(node_id);
    if (other == nullptr || other->agent_id == m.agent_id) return Claim::kIts;
    // Its host may be lost already, before the job has begun, and started again.
    const bool may_be_lost = other->beats && options_.host_silence != Duration{};
    if (!may_be_lost || other->heard > since) return Claim::kNever;
    return now_ < since + options_.host_silence ? Claim::kWaits : Claim::kIts;
  }
  const Member& member = at(rank);
  const std::string& owner = member.seat.agent;
  if (owner.empty() || owner == m.agent_id || member.is_free) return Claim::kIts;
  if (member.seat.given && watches_hosts()) return Claim::kTooLate;
  if (const Link here = link_of_agent(owner); here != 0) {
    const bool lives = !watches_hosts() || agents_.at(here).heard > since;
    return lives ? Claim::kNever : Claim::kWaits;
  }
  return is_awaited(owner, m.host) ? Claim::kWaits : Claim::kIts;
}

void Machine::set_owner(Member& member, const std::string& agent_id) {
  if (const auto former = owned_.find(member.seat.agent); former != owned_.end()) {
    former->second.erase(member.rank);
    if (former->second.empty()) owned_.erase(former);
  }
  member.seat.agent = agent_id;
  member.is_free = false;
  free_.erase(member.rank);
  if (!agent_id.empty()) owned_[agent_id].insert(member.rank);
  changed_.insert(member.rank);
}

// The agent speaks for this place, and may.
void Machine::own(Rank rank, const std::string& agent_id) {
  Member& member = at(rank);
  if (member.seat.agent == agent_id) {
    member.is_free = false;
    free_.erase(rank);
    return;
  }
  const bool had_another = !member.seat.agent.empty();
  set_owner(member, agent_id);
  if (!had_another) return;
  set_given(member);
  retire(member);
}

void Machine::set_given(Member& member) {
  member.seat.given = true;
  given_.insert(member.rank);
}

// What was changed is stored first.
void Machine::refuse_retired() {
  for (const auto& [link, rank] : std::exchange(retired_, {})) {
    refuse(link, {.kind = Reason::Kind::kNewerProcess, .rank = rank});
  }
}

// Whoever had the place has lost it for good, even if it lives: it hears so when it speaks. Another
// agent counts its attempts anew. A process of that one may have the place at once.
void Machine::retire(Member& member) {
  if (std::exchange(member.seat.incarnation, 0) == 0) return;
  member.seat.attempt = 0;
  changed_.insert(member.rank);
  vacant_.insert(member.rank);
  if (member.link != 0) retired_.emplace_back(member.link, member.rank);
  if (lease_runs(member)) {
    died(member, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  } else if (member.state == SeatState::kSilent) {
    detach(member);
    advance(member, SeatEvent::kDied);
  }
}

void Machine::free_places(const std::string& agent_id, bool free) {
  if (!free) lost_.erase(agent_id);
  const auto owned = owned_.find(agent_id);
  if (owned == owned_.end()) return;
  for (const Rank rank : owned->second) {
    at(rank).is_free = free;
    free ? (void)free_.insert(rank) : (void)free_.erase(rank);
  }
}

// The agent on this link has told its table.
void Machine::settle_places(Link link, const std::vector<std::string>& too_late) {
  const Agent agent = agents_.at(link);
  for (const auto& node_id : agent.nodes) {
    if (const Rank rank = rank_of(node_id); rank != kNoRank) own(rank, agent.agent_id);
  }
  if (!changed_.empty() && formation_.stage != Stage::kEnded) store();
  refuse_retired();
  const bool drains = is_drained(agent.agent_id);
  const bool has_not_heard = drains && agent.takes > 0;
  if (!too_late.empty() || has_not_heard) send(link, wire::Drop{too_late, drains});
  wire::Give lacking;
  if (const auto owned = owned_.find(agent.agent_id); owned != owned_.end()) {
    for (const Rank rank : owned->second) {
      const wire::Seat& seat = at(rank).seat;
      if (!seat.finished && !has_claimed(agent, seat.node_id)) {
        lacking.node_ids.push_back(seat.node_id);
      }
    }
  }
  if (!lacking.node_ids.empty()) send(link, std::move(lacking));
}

bool Machine::has_claimed(const Agent& agent, const std::string& node_id) const {
  const Agent* claimant = speaker(node_id);
  return claimant != nullptr && claimant->agent_id == agent.agent_id;
}

// Places that it owns, and has not claimed so far.
std::size_t Machine::unclaimed(const Agent& agent) const {
  const auto owned = owned_.find(agent.agent_id);
  if (owned == owned_.end()) return 0;
  return static_cast<std::size_t>(
      std::count_if(owned->second.begin(), owned->second.end(), [&](Rank rank) {
        return !at(rank).seat.finished && !has_claimed(agent, at(rank).seat.node_id);
      }));
}

bool Machine::is_drained(const std::string& agent_id) const {
  const auto& drained = formation_.drained;
  return std::find(drained.begin(), drained.end(), agent_id) != drained.end();
}

bool Machine::takes(const Agent& agent, std::size_t places) const {
  return !agent.is_silent && agent.takes >= places && unclaimed(agent) == 0 &&
         !is_drained(agent.agent_id);
}

// Who would take so many places: the least loaded one, so a spare host before all others. It is not
// on host `not_on`, and on host `only_on`, if that is said.
Link Machine::host_for(std::size_t places, const std::string& not_on,
                       const std::string& only_on) const {
  Link best = 0;
  std::size_t least = 0;
  for (const auto& [link, agent] : agents_) {
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
  std::map<Link, wire::Drop> drops;
  wire::Give give;
  for (const Rank rank : ranks) {
    Member& member = at(rank);
    const std::string node_id = member.seat.node_id;
    if (const auto word = place_words_.extract(node_id); !word.empty()) {
      const Link former = word.mapped().link;
      std::erase(agents_.at(former).nodes, node_id);
      drops[former].node_ids.push_back(node_id);
    }
    set_owner(member, agent_id);
    set_given(member);
    retire(member);
    give.node_ids.push_back(node_id);
  }
  store();
  refuse_retired();
  for (auto& [link, drop] : drops) {
    drop.drains = is_drained(agents_.at(link).agent_id);
    send(link, std::move(drop));
  }
  send(heir, std::move(give));
}

// Those of these ranks whose places are free and needed, by memory.
std::map<std::string, std::set<Rank>> Machine::homeless(const std::set<Rank>& ranks) const {
  std::map<std::string, std::set<Rank>> groups;
  for (const Rank rank : ranks) {
    if (!free_.contains(rank) || at(rank).seat.finished) continue;
    groups[at(rank).seat.memory].insert(rank);
  }
  return groups;
}

// The places of lost hosts go to hosts that would take them: those of one host to one.
void Machine::house() {
  if (formation_.stage == Stage::kEnded) return;
  for (const auto& [memory, ranks] : homeless(free_)) {
    const Link heir = host_for(ranks.size(), "", "");
    if (heir == 0) continue;
    tell_lost(ranks, agents_.at(heir).host);
    hand_over(ranks, heir);
  }
}

// On every host: what became of these ranks' host.
void Machine::tell_lost(const std::set<Rank>& ranks, const std::string& heir) {
  const wire::Seat& seat = at(*ranks.begin()).seat;
  const auto host = lost_.find(seat.agent);
  tell_agents(wire::Waiting{{.kind = Reason::Kind::kHostLost,
                             .count = static_cast<std::int64_t>(ranks.size()),
                             .host = host != lost_.end() ? host->second : seat.host,
                             .other_host = heir}});
}

void Machine::judge_rivals() {
  const auto rivals = rivals_;
  for (const auto& [link, rival] : rivals) {
    if (rivals_.contains(link)) receive(link, rival.claim);  // It may have been judged meanwhile.
  }
}

// ---- Places of a host that lives ----------------------------------------------------------------

// Why that can not be; else `wish` is what is to be done.
std::optional<Reason> Machine::plan_move(const wire::Move& m, Wish& wish) const {
  const Reason not_now{.kind = Reason::Kind::kNotNow, .host = m.from};
  if (!assembled() || wish_ || ended_ != kNoRank) return not_now;
  for (const auto& [link, agent] : agents_) {
    if (agent.host != m.from || agent.is_silent) continue;
    if (unclaimed(agent) > 0) return not_now;
    wish.agents.insert(link);
    const auto owned = owned_.find(agent.agent_id);
    if (owned != owned_.end()) wish.ranks.insert(owned->second.begin(), owned->second.end());
  }
  if (wish.agents.empty() || (wish.ranks.empty() && !m.drains)) {
    return Reason{.kind = Reason::Kind::kNoSuchHost, .host = m.from};
  }
  const auto ranks = static_cast<std::int64_t>(wish.ranks.size());
  const std::size_t drained = formation_.drained.size() + wish.agents.size();
  if (m.drains && drained > wire::kMaxListLength) {
    return Reason{.kind = Reason::Kind::kTooMuch,
                  .count = static_cast<std::int64_t>(drained),
                  .total = static_cast<std::int64_t>(wire::kMaxListLength),
                  .detail = "drained agents"};
  }
  wish.drains = m.drains;
  wish.what = {.kind = Reason::Kind::kMoves, .count = ranks, .host = m.from, .other_host = m.to};
  if (wish.ranks.empty()) return std::nullopt;
  wish.heir = host_for(wish.ranks.size(), m.from, m.to);
  if (wish.heir == 0) {
    return Reason{
        .kind = Reason::Kind::kNobodyTakes, .count = ranks, .host = m.from, .other_host = m.to};
  }
  wish.what.other_host = agents_.at(wish.heir).host;
  return std::nullopt;
}

void Machine::receive(Link link, const wire::Move& m) {
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  if (const auto why = excess({&m.from, &m.to})) return reject(link, *why);
  Wish wish;
  if (auto why = plan_move(m, wish)) return send(link, wire::Moved{*std::move(why)});
  if (wish.ranks.empty()) {  // A spare host.
    drain(wish);
    store();
    for (const Link agent : wish.agents) send(agent, wire::Drop{{}, true});
    return send(link, wire::Moved{std::move(wish.what)});
  }
  wish.asker = link;
  wish_ = std::move(wish);
  relieve();
}

// All stop at a step's boundary, and say what they hold. Between two such stops all make a step.
void Machine::relieve() {
  const bool runs = formation_.stage == Stage::kRunning && unproven_.empty();
  if (wish_ && runs) begin(wish_->what);
}

void Machine::drain(const Wish& wish) {
  for (const Link link : wish.agents) {
    const std::string& agent_id = agents_.at(link).agent_id;
    if (!is_drained(agent_id)) formation_.drained.push_back(agent_id);
  }
}

// What became of it, if somebody has asked.
void Machine::answer_wish(const Wish& wish, Reason reason) {
  if (formation_.cause == wish.what) formation_.cause = reason;  // Else there is a fault as well.
  if (wish.asker != 0) send(wish.asker, wire::Moved{std::move(reason)});
}

// All have reported. Whether places go to another host before there is a plan: only if the job can
// go on from the same version with what is elsewhere, and nothing begins anew, not even a private
// part.
bool Machine::grant_wish(const std::set<Rank>& disbelieved) {
  const auto wish = std::exchange(wish_, std::nullopt);
  if (!wish) return false;
  const auto heir = agents_.find(wish->heir);
  const bool same = std::all_of(wish->ranks.begin(), wish->ranks.end(), [&](Rank rank) {
    const auto word = place_words_.find(at(rank).seat.node_id);
    return word != place_words_.end() && wish->agents.contains(word->second.link);
  });
  // A rank that has ended may have left, and with it what it would give.
  const bool ends = ended_rank() != kNoRank;
  if (!same || ends || heir == agents_.end() || !takes(heir->second, wish->ranks.size())) {
    answer_wish(*wish, {.kind = Reason::Kind::kNotNow, .host = wish->what.host});
    return false;
  }
  const auto plan = planner::plan(table(disbelieved, {}));
  const auto without = planner::plan(table(disbelieved, wish->ranks));
  const bool anew = begins_anew(without) && !begins_anew(plan);
  if (!without.possible || without.version != plan.version || anew) {
    const Rank rank = without.possible ? *wish->ranks.begin() : without.lacking;
    answer_wish(*wish, {.kind = Reason::Kind::kNotHeld, .rank = rank});
    return false;
  }
  for (const Link link : wish->agents) relieved_.insert(agents_.at(link).agent_id);
  if (wish->drains) drain(*wish);
  hand_over(wish->ranks, wish->heir);
  answer_wish(*wish, wish->what);
  return true;
}

// A host that has others' places besides its own gets rid of them once there is one with fewer.
void Machine::maybe_balance() {
  if (given_.empty() || wish_ || formation_.stage != Stage::kRunning) return;
  if (!has_proven_ || !unproven_.empty() || ended_ != kNoRank) return;
  std::map<std::string, std::set<Rank>> by_owner;
  for (const Rank rank : given_) by_owner[at(rank).seat.agent].insert(rank);
  for (const auto& [owner, given] : by_owner) {
    const Link link = link_of_agent(owner);
    const auto owned = owned_.find(owner);
    if (link == 0 || owned == owned_.end()) continue;
    if (given.size() == owned->second.size()) continue;  // It has none of its own.
    const Agent& full = agents_.at(link);
    for (const auto& [heir_link, heir] : agents_) {
      const bool is_better = heir.nodes.size() + given.size() < full.nodes.size();
      if (!is_better || full.host == heir.host || relieved_.contains(heir.agent_id)) continue;
      if (!takes(heir, given.size())) continue;
      relieved_.insert(heir.agent_id);
      wish_ = {.ranks = given,
               .agents = {link},
               .heir = heir_link,
               .what = {.kind = Reason::Kind::kMoves,
                        .count = static_cast<std::int64_t>(given.size()),
                        .host = full.host,
                        .other_host = heir.host}};
      return relieve();
    }
  }
}

}  // namespace holdfast::controller
