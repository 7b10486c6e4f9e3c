#include "core/controller/transfers.h"

#include <algorithm>

#include "core/planner/planner.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

bool begins_anew(const planner::Plan& plan) {
  return std::any_of(plan.orders.begin(), plan.orders.end(),
                     [](const auto& order) { return order.act == wire::Act::kBegin; });
}

}  // namespace

// Why the move can not be made; nullopt: it can, and `transfer` says how.
std::optional<Reason> Transfers::plan_move(const wire::Move& m, Transfer& transfer) const {
  const Reason not_now{.kind = Reason::Kind::kNotNow, .host = m.from};
  if (!roster_.assembled() || transfer_ || rendezvous_.ended() != kNoRank) return not_now;
  for (const auto& [link, agent] : agents_.here()) {
    if (agent.host != m.from || agent.is_silent) continue;
    if (!owners_.lacking(agent).empty()) return not_now;
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
  transfer.heir = owners_.host_for(transfer.ranks.size(), m.from, m.to);
  if (transfer.heir == 0) {
    return Reason{
        .kind = Reason::Kind::kNobodyTakes, .count = ranks, .host = m.from, .other_host = m.to};
  }
  transfer.what.other_host = agents_.at(transfer.heir).host;
  return std::nullopt;
}

void Transfers::receive(Link link, const wire::Move& m) {
  if (job_.has_ended()) return job_end_.tell(link);
  if (const auto why = excess({&m.from, &m.to})) return job_.reject(link, *why);
  Transfer transfer;
  if (auto why = plan_move(m, transfer)) return job_.send(link, wire::Moved{*std::move(why)});
  if (transfer.ranks.empty()) {  // The host is a spare host.
    drain(transfer);
    job_.store();
    for (const auto& agent_id : transfer.agents) agents_.set_untold(agents_.link_of(agent_id));
    owners_.tell_owners();
    return job_.send(link, wire::Moved{std::move(transfer.what)});
  }
  transfer.asker = link;
  transfer_ = std::move(transfer);
  begin();
}

// Stops all ranks, so that they report what they hold. A step that is under way may become void,
// and is then made again: no version is lost. All ranks have to make a step between two such stops.
void Transfers::begin() {
  const bool runs = formation_.stage == Stage::kRunning && rendezvous_.is_proven();
  if (transfer_ && runs) rendezvous_.begin(transfer_->what);
}

void Transfers::proven() {
  has_proven_ = true;
  begin();
  maybe_balance();
}

void Transfers::closed(Link link) {
  // Nobody would hear what became of the transfer.
  if (transfer_ && transfer_->asker == link) transfer_.reset();
}

void Transfers::drain(const Transfer& transfer) {
  for (const auto& agent_id : transfer.agents) {
    if (!owners_.is_drained(agent_id)) formation_.drained.push_back(agent_id);
  }
}

// Tells what became of the transfer, if somebody has asked for it.
void Transfers::answer(const Transfer& transfer, Reason reason) {
  if (formation_.cause == transfer.what)
    formation_.cause = reason;  // If the cause is another one, there is a fault as well.
  if (transfer.asker != 0) job_.send(transfer.asker, wire::Moved{std::move(reason)});
}

// Hands the places over only if the job can go on from the same version with what other hosts hold,
// and nothing begins anew, not even a private part.
bool Transfers::carry_out(const std::set<Rank>& disbelieved) {
  const auto transfer = std::exchange(transfer_, std::nullopt);
  if (!transfer) return false;
  const Agent* heir = agents_.find(transfer->heir);
  const bool same = std::all_of(transfer->ranks.begin(), transfer->ranks.end(), [&](Rank rank) {
    const Agent* speaker = agents_.speaker(roster_.at(rank).seat.node_id);
    return speaker != nullptr && transfer->agents.contains(speaker->agent_id);
  });
  // A rank that has ended may have left, and with it the state that others would copy.
  const bool ends = rendezvous_.ended_rank() != kNoRank;
  if (!same || ends || heir == nullptr || !owners_.takes(*heir, transfer->ranks.size())) {
    answer(*transfer, {.kind = Reason::Kind::kNotNow, .host = transfer->what.host});
    return false;
  }
  const auto plan = planner::plan(rendezvous_.table(disbelieved, {}));
  const auto without = planner::plan(rendezvous_.table(disbelieved, transfer->ranks));
  const bool anew = begins_anew(without) && !begins_anew(plan);
  if (!without.possible || without.version != plan.version || anew) {
    const Rank rank = without.possible ? *transfer->ranks.begin() : without.lacking;
    answer(*transfer, {.kind = Reason::Kind::kNotHeld, .rank = rank});
    return false;
  }
  emptied_.insert(transfer->agents.begin(), transfer->agents.end());
  if (transfer->drains) drain(*transfer);
  owners_.hand_over(transfer->ranks, transfer->heir);
  answer(*transfer, transfer->what);
  return true;
}

// A host that has places of others besides its own gives those to a host that would still have
// fewer.
void Transfers::maybe_balance() {
  if (roster_.given().empty() || transfer_ || formation_.stage != Stage::kRunning) return;
  if (!has_proven_ || !rendezvous_.is_proven() || rendezvous_.ended() != kNoRank) return;
  std::map<std::string, std::set<Rank>> by_owner;
  for (const Rank rank : roster_.given()) by_owner[roster_.at(rank).seat.agent].insert(rank);
  for (const auto& [owner, given] : by_owner) {
    const Link link = agents_.link_of(owner);
    const std::set<Rank>& owned = roster_.owned_by(owner);
    // The owner is not here, or has no places of its own.
    if (link == 0 || given.size() == owned.size()) continue;
    const Agent& full = agents_.at(link);
    for (const auto& [heir_link, heir] : agents_.here()) {
      const bool is_better = heir.nodes.size() + given.size() < full.nodes.size();
      if (!is_better || full.host == heir.host || emptied_.contains(heir.agent_id)) continue;
      if (!owners_.takes(heir, given.size())) continue;
      emptied_.insert(heir.agent_id);
      transfer_ = {.ranks = given,
                   .agents = {owner},
                   .heir = heir_link,
                   .what = {.kind = Reason::Kind::kMoves,
                            .count = static_cast<std::int64_t>(given.size()),
                            .host = full.host,
                            .other_host = heir.host}};
      return begin();
    }
  }
}

}  // namespace holdfast::controller
