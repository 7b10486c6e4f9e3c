#include "core/controller/rendezvous.h"

#include <algorithm>
#include <utility>

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

// At most this many processes are named if a group can not be formed: the names go to all ranks.
constexpr std::size_t kMaxAwaited = 64;

bool begins(const planner::Plan& plan) {
  return std::any_of(plan.orders.begin(), plan.orders.end(), [](const auto& order) {
    return order.act == wire::Act::kBegin && order.shard == 0;
  });
}

}  // namespace

void Rendezvous::go_on() {
  waiting_since_ = job_.now;
  ended_ = ended_rank();
}

std::vector<wire::Awaited> Rendezvous::awaited() const {
  using Kind = wire::Awaited::Kind;
  std::vector<wire::Awaited> all;
  for (const auto& [node_id, member] : roster_.arrivals()) {
    if (all.size() < kMaxAwaited) all.push_back({.node_id = node_id});
  }
  for (Rank rank = 0; rank < roster_.world_size() && all.size() < kMaxAwaited; ++rank) {
    const Member& member = roster_.at(rank);
    if (member.seat.finished) continue;
    if (member.state != SeatState::kHeld) {
      all.push_back({.kind = Kind::kNotReplaced, .rank = rank, .ending = member.ending});
    } else if (formation_.stage == Stage::kStopping && !reports_.contains(rank)) {
      all.push_back({.kind = Kind::kNotReported, .rank = rank, .pid = member.seat.pid});
    } else if (repairing_.contains(rank)) {
      all.push_back({.kind = Kind::kNotRepaired, .rank = rank, .pid = member.seat.pid});
    }
  }
  return all;
}

// A live process that has joined before may take its time between two steps, as for an evaluation.
// A process that is gone, or a successor that never joins, may not.
std::optional<Instant> Rendezvous::deadline() const {
  if (formation_.stage != Stage::kStopping && formation_.stage != Stage::kRepairing) return {};
  const bool starts = formation_.generation <= 1;  // At first, user code may prepare for long.
  const bool waits = roster_.absent() != 0 || (roster_.unjoined() != 0 && !starts);
  return waits ? std::optional(waiting_since_ + job_.options.replacement_timeout) : std::nullopt;
}

void Rendezvous::begin(Reason cause) {
  if (formation_.stage != Stage::kStopping && formation_.stage != Stage::kRepairing) {
    waiting_since_ = job_.now;
  }
  job_.enter(StageEvent::kBegun);
  formation_.cause = std::move(cause);
  formation_.orders.clear();
  reports_.clear();
  repairing_.clear();
  unproven_.clear();
  moved_.clear();
  ++formation_.generation;
  // The number must be durable before anyone sees it: after a crash it could be given twice.
  job_.store();
  job_.note(Note::Kind::kStop, kNoRank, formation_.cause);
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    if (!roster_.at(rank).seat.finished) assign(rank);
  }
}

// Sends this rank its part of the formation, as it is now.
void Rendezvous::assign(Rank rank) {
  addresses_.refresh();
  wire::Assignment part{.rank = rank,
                        .world_size = roster_.world_size(),
                        .run_id = formation_.run_id,
                        .generation = formation_.generation,
                        .stage = formation_.stage,
                        .version = formation_.version,
                        .order = {},
                        .ended = formation_.stage == Stage::kRunning ? ended_ : kNoRank,
                        .cause = formation_.cause,
                        .addresses = addresses_.name(),
                        .pauses = formation_.pauses};
  if (repairing_.contains(rank)) part.order = formation_.orders[static_cast<std::size_t>(rank)];
  job_.send(roster_.at(rank).link, std::move(part));
}

void Rendezvous::rank_lost(Rank rank, const Reason& cause, std::uint64_t detected_ns) {
  if (job_.has_ended()) return;
  // The clock of an agent under another kernel can not be compared with this one's.
  const bool by_our_clock = roster_.at(rank).seat.memory.starts_with(job_.options.boot);
  job_.note(Note::Kind::kFault, rank, cause, by_our_clock ? detected_ns : 0);
  if (roster_.at(rank).seat.finished)
    return;  // Nobody waits for this rank; its successor causes begin().
  if (formation_.stage == Stage::kStopping) {
    reports_.erase(rank);
    waiting_since_ = job_.now;
  } else {
    begin(cause);
  }
}

Said Rendezvous::said_by(Rank rank, const wire::Report& report) const {
  return {.rank = rank,
          .version = report.version,
          .staged = report.staged,
          .told = std::max(formation_.version, roster_.at(rank).version),
          .private_is_own = report.private_is_own};
}

// Adds to the table what a rank holds: its copy of the state that all workers share, and all copies
// of its private part, if it has one. (All that a server has is private.) A rank that has lost
// pages of its private part gets all from others, so that one order does for both.
void Rendezvous::list(Rank rank, const wire::Report& report, const HeldCopies& held,
                      planner::Table& table) const {
  const bool lost = report.has_lost_private || report.has_lost_shared;
  if (rank < job_.workers()) {
    table.shards[0].copies.push_back({rank, report.version, report.staged, !lost});
  }
  if (!report.private_is_own) return;
  const planner::Copy copy{rank, report.version, report.staged, !report.has_lost_private};
  auto& copies = table.shards.emplace_back(planner::Shard{"private state", {copy}, true}).copies;
  const auto found = held.find(rank);
  if (found != held.end()) copies.insert(copies.end(), found->second.begin(), found->second.end());
}

// By ward, the copies that other ranks hold for it. For the planner such a holder has the number
// world_size + rank, so it is no rank: it needs nothing, and gives what it has.
Rendezvous::HeldCopies Rendezvous::held_copies() const {
  HeldCopies all;
  for (const auto& [rank, report] : reports_) {
    for (const wire::HeldCopy& held : report.held) {
      auto& copies = all[held.ward];
      const planner::Holder holder = roster_.world_size() + rank;
      const bool again = !copies.empty() && copies.back().holder == holder;
      const bool is_other = held.ward != rank && held.ward >= 0 && held.ward < roster_.world_size();
      if (is_other && !again) copies.push_back({holder, held.version, held.staged});
    }
  }
  return all;
}

// Adds the planner's order for one shard to the one order that the rank carries out for all of its
// shards. That order is kReceive if any is, and kKeep only if all are. The orders of a rank differ
// only for version 0, since its memory holds one version. A mere holder gets no order: a private
// part that it has staged already is that of the next version.
void Rendezvous::give(const planner::Order& order) {
  if (order.holder >= roster_.world_size()) return;
  wire::Order& given = formation_.orders[static_cast<std::size_t>(order.holder)];
  const bool is_private = order.shard > 0;
  if (order.source != kNoRank && is_private) {
    given.private_source = location_of(order.source % roster_.world_size(), order.holder);
  }
  if (given.act == wire::Act::kReceive || order.act == wire::Act::kKeep) return;
  given.act = order.act;
  if (order.source != kNoRank && !is_private)
    given.source = location_of(order.source, order.holder);
}

// Where `asker` finds what `holder` has.
wire::Location Rendezvous::location_of(Rank holder, Rank asker) {
  const wire::Seat& source = roster_.at(holder).seat;
  const bool shared = source.memory == roster_.at(asker).seat.memory;
  return {
      .holder = holder, .host = source.host, .endpoint = shared ? std::string() : source.endpoint};
}

planner::Table Rendezvous::table(const std::set<Rank>& disbelieved,
                                 const std::set<Rank>& without) const {
  planner::Table table{.ranks = roster_.world_size(),
                       .finished = {},
                       .shards = {{kSharedState, {}}},
                       .reached = formation_.reached};
  for (const auto& snapshot : formation_.snapshots) table.snapshots.push_back(snapshot.version);
  HeldCopies held = held_copies();
  for (auto& [ward, copies] : held) {
    std::erase_if(copies, [&](const planner::Copy& copy) {
      return without.contains(copy.holder - roster_.world_size());
    });
  }
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    const wire::Seat& seat = roster_.at(rank).seat;
    if (!seat.finished) {
      wire::Report report = reports_.at(rank);
      if (without.contains(rank)) report.version = report.staged = kNoVersion;
      list(rank, report, held, table);
      continue;
    }
    table.finished.insert(rank);
    if (!disbelieved.contains(rank) && rank < job_.workers()) {
      table.shards[0].copies.push_back({rank, seat.version, seat.version});
    }
  }
  return table;
}

void Rendezvous::carry_out(const planner::Plan& plan) {
  job_.enter(StageEvent::kPlanned);
  const Version reached = std::max(formation_.reached, plan.version);
  formation_.version = formation_.reached = plan.version;
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {  // All ranks reach this version.
    if (!roster_.at(rank).seat.finished) roster_.set_version(roster_.at(rank), plan.version);
  }
  formation_.orders.resize(roster_.members().size());
  for (const auto& order : plan.orders) give(order);
  for (const Rank rank : moved_) formation_.orders[static_cast<std::size_t>(rank)].moved = true;
  if (plan.loads()) {
    formation_.loads = true;
    for (auto& order : formation_.orders) order.snapshot = snapshot_of(plan.version);
    job_.store();  // Before a rank gives up what it has.
  }
  const bool first = begins(plan);
  job_.emit(Note{.kind = Note::Kind::kPlan,
                 .generation = formation_.generation,
                 .version = plan.version,
                 .reason = {.kind = first ? Reason::Kind::kBeginAtZero : Reason::Kind::kGoOn,
                            .version = plan.version},
                 .steps_lost = reached - plan.version});
  round_ = 0;
  next_round();
}

std::string Rendezvous::snapshot_of(Version version) const {
  const auto& all = formation_.snapshots;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.version == version; });
  return found == all.end() ? "" : found->name;
}

// The first round is what each rank does in its own arena, the second the copies: a source must
// have the version before others copy from it. A rank has one order in a generation, so it is in
// one round.
void Rendezvous::next_round() {
  while (repairing_.empty()) {
    if (++round_ > 2) return resume();
    for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
      const auto act = formation_.orders[static_cast<std::size_t>(rank)].act;
      const bool own = act != wire::Act::kKeep && act != wire::Act::kReceive;
      if (round_ == 1 ? own : act == wire::Act::kReceive) repairing_.insert(rank);
    }
  }
  for (const Rank rank : repairing_) assign(rank);
}

void Rendezvous::receive(Link link, const wire::Repaired& m) {
  const Rank rank = job_.connections.rank_at(link);
  if (formation_.stage != Stage::kRepairing || m.generation != formation_.generation) return;
  if (repairing_.erase(rank) == 0) return;
  const wire::Order& order = formation_.orders[static_cast<std::size_t>(rank)];
  rebuilt_.push_back(
      {rank, order.act, order.source.holder, order.private_source.holder, m.bytes, m.is_of_pages});
  if (repairing_.empty()) next_round();
}

void Rendezvous::resume() {
  job_.emit(Note{.kind = Note::Kind::kRepaired,
                 .generation = formation_.generation,
                 .version = formation_.version,
                 .reason = formation_.cause,
                 .rebuilt = std::exchange(rebuilt_, {})});
  job_.enter(StageEvent::kRepaired);
  for (const Rank rank : moved_) {
    roster_.alter(roster_.at(rank), [](Member& changed) { changed.seat.moved = false; });
  }
  moved_.clear();
  formation_.orders.clear();
  formation_.loads = false;
  if (formation_.generation > 1) ++formation_.recoveries;
  ended_ = ended_rank();
  job_.store();
  job_.note(Note::Kind::kResume, kNoRank, formation_.cause);
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    if (roster_.at(rank).seat.finished) continue;
    unproven_.insert(rank);
    assign(rank);
  }
}

// A rank whose training has ended, so that it will not join the others' group (P33); kNoRank: none.
Rank Rendezvous::ended_rank() const {
  const auto found = std::find_if(roster_.each().begin(), roster_.each().end(),
                                  [](const Member& member) { return member.seat.finished; });
  return found == roster_.members().end() ? kNoRank : found->rank;
}

// Only an agent, or a process with a rank, gets the addresses.
void Rendezvous::receive(Link link, const wire::AskAddresses&) {
  const Rank rank = job_.connections.rank_at(link);
  if (job_.agents.find(link) == nullptr && rank == kNoRank) return;
  if (job_.unanswered(link) >= kMaxUnanswered) return job_.dismiss(link);
  addresses_.refresh();
  addresses_.tell(link);
  // The worker may wait for a book that is no longer the newest: name the newest one again.
  if (rank != kNoRank) assign(rank);
}

}  // namespace holdfast::controller
