// From a fault to the next step: STOP, PLAN, REPAIR, REFORM, RESUME.
#include <algorithm>
#include <iterator>

#include "base/assert.h"
#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

constexpr Duration kToldOfProgress = std::chrono::milliseconds(1);  // One agent, on average.

constexpr const char* kSharedState = "state";

bool begins(const planner::Plan& plan) {
  return std::any_of(plan.orders.begin(), plan.orders.end(), [](const auto& order) {
    return order.act == wire::Act::kBegin && order.shard == 0;
  });
}

constexpr std::size_t index(StageEvent event) {
  return static_cast<std::size_t>(event);
}

constexpr Transition<Stage> kStageTransitions[] = {
    {Stage::kAssembling, index(StageEvent::kBegun), Stage::kStopping, "all processes have come"},
    {Stage::kStopping, index(StageEvent::kBegun), Stage::kStopping, "another scheduler goes on"},
    {Stage::kStopping, index(StageEvent::kPlanned), Stage::kRepairing},
    {Stage::kRepairing, index(StageEvent::kBegun), Stage::kStopping,
     "a rank is lost or came back, or another scheduler goes on"},
    {Stage::kRepairing, index(StageEvent::kRepaired), Stage::kRunning},
    {Stage::kRunning, index(StageEvent::kBegun), Stage::kStopping,
     "a rank is lost or came back, or a group is lost"},
    {Stage::kAssembling, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kStopping, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kRepairing, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kRunning, index(StageEvent::kOver), Stage::kEnded},
};

}  // namespace

std::span<const Transition<Stage>> stage_transitions() {
  return kStageTransitions;
}

const char* name(StageEvent event) {
  constexpr const char* kNames[] = {"generation begun", "planned", "repaired", "over"};
  return kNames[index(event)];
}

void Machine::enter(StageEvent event) {
  const auto* row = std::find_if(
      std::begin(kStageTransitions), std::end(kStageTransitions),
      [&](const auto& t) { return t.from == formation_.stage && t.event == index(event); });
  HF_ASSERT(row != std::end(kStageTransitions));
  formation_.stage = row->to;
}

void Machine::begin(Reason cause) {
  if (formation_.stage != Stage::kStopping && formation_.stage != Stage::kRepairing) {
    waiting_since_ = now_;
  }
  enter(StageEvent::kBegun);
  formation_.cause = std::move(cause);
  formation_.orders.clear();
  reports_.clear();
  repairing_.clear();
  unproven_.clear();
  moved_.clear();
  ++formation_.generation;
  // The number must be durable before anyone sees it: after a crash it could be given twice.
  store();
  note(Note::Kind::kStop, kNoRank, formation_.cause);
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    if (!roster_.at(rank).seat.finished) assign(rank);
  }
}

// This rank's part of the formation, as it is now.
void Machine::assign(Rank rank) {
  refresh_book();
  wire::Assignment part{.rank = rank,
                        .world_size = roster_.world_size(),
                        .run_id = formation_.run_id,
                        .generation = formation_.generation,
                        .stage = formation_.stage,
                        .version = formation_.version,
                        .order = {},
                        .ended = formation_.stage == Stage::kRunning ? ended_ : kNoRank,
                        .cause = formation_.cause,
                        .addresses = book_.name()};
  if (repairing_.contains(rank)) part.order = formation_.orders[static_cast<std::size_t>(rank)];
  send(roster_.at(rank).link, std::move(part));
}

void Machine::rank_lost(Rank rank, const Reason& cause, std::uint64_t detected_ns) {
  if (formation_.stage == Stage::kEnded) return;
  // An agent under another kernel has another clock.
  const bool by_our_clock = roster_.at(rank).seat.memory.starts_with(options_.boot);
  note(Note::Kind::kFault, rank, cause, by_our_clock ? detected_ns : 0);
  if (roster_.at(rank).seat.finished)
    return;  // Nobody waits for it; begin() comes with its successor.
  if (formation_.stage == Stage::kStopping) {
    reports_.erase(rank);
    waiting_since_ = now_;
  } else {
    begin(cause);
  }
}

void Machine::receive(Link link, const wire::Report& said_here) {
  const Rank rank = rank_at(link);
  if (rank == kNoRank || formation_.stage != Stage::kStopping) return;
  wire::Report m = said_here;
  if (m.generation != formation_.generation || roster_.at(rank).seat.finished) return;
  if (m.held.size() > roster_.members().size()) m.held.resize(roster_.members().size());  // P44
  if (roster_.at(rank).seat.moved) {
    moved_.insert(rank);
    // What its memory holds of its former stay is of no use but to show how far the job was.
    if (m.version != kNoVersion) formation_.reached = std::max(formation_.reached, m.version);
    m.version = m.staged = kNoVersion;
    m.held.clear();
  }
  const Said said = said_by(rank, m);
  if (!is_sound(said)) return disbelieve(rank, m.version, said.told);
  roster_.alter(roster_.at(rank), [](Member& member) { member.joined = true; });
  reports_[rank] = m;
  maybe_plan();
}

Said Machine::said_by(Rank rank, const wire::Report& report) const {
  return {.rank = rank,
          .version = report.version,
          .staged = report.staged,
          .told = std::max(formation_.version, roster_.at(rank).version),
          .private_is_own = report.private_is_own};
}

// Its process can not be trusted with its state: another one shall look at that.
void Machine::disbelieve(Rank rank, Version said, Version possible) {
  const Member& member = roster_.at(rank);
  const Reason why{.kind = Reason::Kind::kImpossible,
                   .rank = rank,
                   .pid = member.seat.pid,
                   .count = static_cast<std::int64_t>(possible),
                   .version = said};
  refuse(member.link, why);
  evict(member);
  detach(member);
  roster_.alter(member, [&](Member& changed) {
    changed.ending = {};
    changed.heard = now_;
  });
  roster_.advance(member, SeatEvent::kDied);
  rank_lost(rank, why, 0);
  answer_waiting(member.seat.node_id);
}

// Some ranks may have reported what can not be. Those that still train get successors, and the plan
// waits for these: then true is returned. Those that have ended are added to `ended`, and what they
// hold is not counted.
bool Machine::disbelieve_some(std::set<Rank>& ended) {
  std::vector<Said> all;
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    const wire::Seat& seat = roster_.at(rank).seat;
    all.push_back(seat.finished ? Said{.rank = rank,
                                       .version = seat.version,
                                       .staged = seat.version,
                                       .told = seat.version}
                                : said_by(rank, reports_.at(rank)));
  }
  const Belief belief = believe(all);
  bool waits = false;
  for (const Rank rank : belief.impossible) {
    if (roster_.at(rank).seat.finished) {
      ended.insert(rank);
    } else {
      disbelieve(rank, reports_.at(rank).version, belief.version);
      waits = true;
    }
  }
  return waits;
}

// What the planner is to know of a rank: all ranks hold the same state, but for a private part.
void Machine::list(Rank rank, const wire::Report& report, const HeldCopies& held,
                   planner::Table& table) {
  const planner::Copy copy{rank, report.version, report.staged};
  table.shards[0].copies.push_back(copy);
  if (!report.private_is_own) return;
  auto& copies = table.shards.emplace_back(planner::Shard{"private state", {copy}, true}).copies;
  const auto found = held.find(rank);
  if (found != held.end()) copies.insert(copies.end(), found->second.begin(), found->second.end());
}

// By ward, what others hold for it. As such, a rank is a holder of another number: it needs
// nothing, and gives what it has.
Machine::HeldCopies Machine::held_copies() const {
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

// A rank carries out one order for all of its shards. The one that says most is that one: its own
// memory holds one version, so only the private part of a version 0 ever differs. Who only holds
// has nothing to do: a staged private part is that of the next version.
void Machine::give(const planner::Order& order) {
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
wire::Location Machine::location_of(Rank holder, Rank asker) {
  const wire::Seat& source = roster_.at(holder).seat;
  const bool shared = source.memory == roster_.at(asker).seat.memory;
  return {
      .holder = holder, .host = source.host, .endpoint = shared ? std::string() : source.endpoint};
}

void Machine::maybe_plan() {
  if (formation_.stage != Stage::kStopping || reports_.empty()) return;
  // Who can not go on together shall hear it at once; else all reports are waited for.
  const std::size_t out = roster_.in_state(SeatState::kFinished) +
                          roster_.in_state(SeatState::kOrphaned) +
                          roster_.in_state(SeatState::kLeft);
  if (reports_.size() + out < roster_.members().size() &&
      roster_.in_state(SeatState::kDeserted) == 0)
    return;
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    const Member& member = roster_.at(rank);
    const bool never_trained = member.seat.finished && member.seat.version == kNoVersion;
    if (never_trained || member.state == SeatState::kDeserted) {
      return end(false, {.kind = Reason::Kind::kEndedWithoutTraining, .rank = rank});
    }
    if (!member.seat.finished && !reports_.contains(rank)) return;
  }
  std::set<Rank> disbelieved;
  if (disbelieve_some(disbelieved) || carry_out_transfer(disbelieved)) return;
  const auto plan = planner::plan(table(disbelieved, {}));
  // A version from which all have gone on is never gone back behind.
  if (plan.possible && plan.version >= formation_.version) return carry_out(plan);
  const bool shared = plan.shard == kSharedState;
  end(false, {.kind = Reason::Kind::kNoPlan,
              .rank = shared ? kNoRank : plan.lacking,
              .version = std::max(plan.version, formation_.version)});
}

// What all have reported; of those `without` as if they held nothing.
planner::Table Machine::table(const std::set<Rank>& disbelieved,
                              const std::set<Rank>& without) const {
  planner::Table table{.ranks = roster_.world_size(),
                       .finished = {},
                       .shards = {{kSharedState, {}}},
                       .reached = formation_.reached};
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
    if (!disbelieved.contains(rank)) {
      table.shards[0].copies.push_back({rank, seat.version, seat.version});
    }
  }
  return table;
}

void Machine::carry_out(const planner::Plan& plan) {
  enter(StageEvent::kPlanned);
  const Version reached = std::max(formation_.reached, plan.version);
  formation_.version = formation_.reached = plan.version;
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {  // All reach it.
    if (!roster_.at(rank).seat.finished) roster_.set_version(roster_.at(rank), plan.version);
  }
  formation_.orders.resize(roster_.members().size());
  for (const auto& order : plan.orders) give(order);
  for (const Rank rank : moved_) formation_.orders[static_cast<std::size_t>(rank)].moved = true;
  const bool first = begins(plan);
  emit(Note{.kind = Note::Kind::kPlan,
            .generation = formation_.generation,
            .version = plan.version,
            .reason = {.kind = first ? Reason::Kind::kBeginAtZero : Reason::Kind::kGoOn,
                       .version = plan.version},
            .steps_lost = reached - plan.version});
  round_ = 0;
  next_round();
}

// First what each rank does with its own arena, then the copies: a source must be whole before.
// A member carries out one order a generation; a rank has one, so the rounds never meet in it.
void Machine::next_round() {
  while (repairing_.empty()) {
    if (++round_ > 2) return resume();
    for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
      const auto act = formation_.orders[static_cast<std::size_t>(rank)].act;
      const bool own = act == wire::Act::kFinish || act == wire::Act::kBegin;
      if (round_ == 1 ? own : act == wire::Act::kReceive) repairing_.insert(rank);
    }
  }
  for (const Rank rank : repairing_) assign(rank);
}

void Machine::receive(Link link, const wire::Repaired& m) {
  const Rank rank = rank_at(link);
  if (formation_.stage != Stage::kRepairing || m.generation != formation_.generation) return;
  if (repairing_.erase(rank) == 1 && repairing_.empty()) next_round();
}

void Machine::resume() {
  note(Note::Kind::kRepaired, kNoRank, formation_.cause);
  enter(StageEvent::kRepaired);
  for (const Rank rank : moved_) {
    roster_.alter(roster_.at(rank), [](Member& changed) { changed.seat.moved = false; });
  }
  moved_.clear();
  formation_.orders.clear();
  if (formation_.generation > 1) ++formation_.recoveries;
  ended_ = ended_rank();
  store();
  note(Note::Kind::kResume, kNoRank, formation_.cause);
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    if (roster_.at(rank).seat.finished) continue;
    unproven_.insert(rank);
    assign(rank);
  }
}

// One that will not join the others' group any more, if there is such (P33).
Rank Machine::ended_rank() const {
  const auto found = std::find_if(roster_.each().begin(), roster_.each().end(),
                                  [](const Member& member) { return member.seat.finished; });
  return found == roster_.members().end() ? kNoRank : found->rank;
}

// It has made a step in the running generation; who is last to do so ends the recovery.
void Machine::proven(Rank rank, Version version) {
  if (unproven_.erase(rank) == 0 || !unproven_.empty()) return;
  groups_lost_ = 0;
  emit(Note{Note::Kind::kRecovered, formation_.generation, version, kNoRank, formation_.cause, 0});
  has_proven_ = true;
  begin_transfer();
  maybe_balance();
}

void Machine::receive(Link link, const wire::Progress& m) {
  const Rank rank = rank_at(link);
  if (rank == kNoRank || formation_.stage != Stage::kRunning) return;
  if (m.generation != formation_.generation || roster_.at(rank).seat.finished) return;
  if (m.version < roster_.at(rank).version)
    return disbelieve(rank, m.version, roster_.at(rank).version);
  roster_.set_version(roster_.at(rank), m.version);
  roster_.set_loss(roster_.at(rank), loss_ = m.loss);
  reach(m.version);
  proven(rank, m.version);
  if (!progress_told_) progress_told_.emplace();
  maybe_tell_progress();
}

// It has been committed. That there was a first step at all must outlive us (P43).
void Machine::reach(Version version) {
  const bool first = formation_.reached == 0 && version > 0;
  formation_.reached = std::max(formation_.reached, version);
  if (first) store();
}

// Not before all have made a step in this generation: an agent starts its next spare by that word,
// and a recovery has a better use for the processors.
bool Machine::has_progress_to_tell() const {
  return formation_.stage == Stage::kRunning && unproven_.empty() && progress_told_ &&
         *progress_told_ != std::pair(formation_.generation, roster_.least_version());
}

// How far all ranks are. However many agents there are, so many of them are told in a second.
void Machine::maybe_tell_progress() {
  if (!has_progress_to_tell() || now_ < progress_next_) return;
  progress_told_.emplace(formation_.generation, roster_.least_version());
  progress_next_ = now_ + kToldOfProgress * static_cast<Duration::rep>(agents_.here().size());
  tell_agents(wire::JobProgress{formation_.generation, roster_.least_version(), loss_,
                                formation_.recoveries});
}

// Had anybody died, that would be known by now: a connection has failed. All may try again.
void Machine::receive(Link link, const wire::GroupLost& m) {
  const Rank rank = rank_at(link);
  if (rank == kNoRank || formation_.stage != Stage::kRunning) return;
  if (m.generation != formation_.generation || roster_.at(rank).seat.finished) return;
  if (++groups_lost_ > kMaxGroupsLost) {
    return end(false,
               {.kind = Reason::Kind::kGroupLostTooOften, .rank = rank, .count = kMaxGroupsLost});
  }
  begin({.kind = Reason::Kind::kGroupLost, .rank = rank});
}

void Machine::receive(Link link, const wire::Finished& m) {
  const Rank rank = rank_at(link);
  if (rank == kNoRank || formation_.stage == Stage::kEnded) return;
  const Member& member = roster_.at(rank);
  const Version told = std::max(formation_.version, member.version);
  if (!member.seat.finished && m.version < told) return disbelieve(rank, m.version, told);
  reports_.erase(rank);
  if (!member.seat.finished) {
    roster_.alter(member, [&](Member& changed) {
      changed.seat.finished = true;
      changed.seat.version = changed.version = m.version;
    });
    formation_.reached = std::max(formation_.reached, m.version);
    roster_.advance(member, SeatEvent::kTrainingEnded);
    if (ended_ == kNoRank) ended_ = rank;
    store();
    proven(rank, m.version);
  }
  send(link, wire::Farewell{});
  maybe_plan();
}

void Machine::receive(Link link, const wire::Failed& m) {
  if (formation_.stage == Stage::kEnded) return;
  const Rank rank = rank_at(link);
  if (rank == kNoRank && !speaks_for_a_place(link)) return;
  Reason reason = m.reason;
  reason.rank = rank;
  // It is kept, and told to all.
  reason.awaited.clear();
  for (std::string* text : {&reason.node_id, &reason.host, &reason.other, &reason.other_host}) {
    if (text->size() > kMaxNameBytes) text->resize(kMaxNameBytes);
  }
  if (reason.detail.size() > kMaxTextBytes) reason.detail.resize(kMaxTextBytes);
  end(false, std::move(reason));
}

void Machine::maybe_all_left() {
  if (formation_.stage == Stage::kEnded || !roster_.assembled()) return;
  const std::size_t gone =
      roster_.in_state(SeatState::kLeft) + roster_.in_state(SeatState::kDeserted);
  if (gone == roster_.members().size())
    end(true, {.kind = Reason::Kind::kAllEnded, .total = roster_.world_size()});
}

// All processes of the job have ended in good order, and none has ever asked for a rank.
void Machine::maybe_nobody_came() {
  if (roster_.assembled() || !roster_.arrivals().empty()) return;
  if (agents_.words().size() < static_cast<std::size_t>(options_.world_size)) return;
  const bool all =
      std::all_of(agents_.words().begin(), agents_.words().end(), [](const auto& entry) {
        const wire::PlaceState& place = entry.second.place;
        const bool well = place.ending == wire::Ending{wire::Ending::Kind::kExited, 0};
        return place.attempt > 0 && !place.alive && well;
      });
  if (!all) return;
  end(true, {.kind = Reason::Kind::kNobodyAsked,
             .total = static_cast<std::int64_t>(agents_.words().size())});
}

void Machine::end(bool success, Reason reason) {
  enter(StageEvent::kOver);
  formation_.success = success;
  formation_.end = std::move(reason);
  store();
  emit(End{success, formation_.end});
  wait_for_agent();
  tell_end_to_all();
  key_values_.clear();
  if (!leaves_at_) leave();
}

// An agent that has not heard of the job's end takes the exit of a worker or of the scheduler for a
// death. It would start them again and blame them. So it hears of the end before they go.
void Machine::wait_for_agent() {
  const bool is_here =
      std::any_of(agents_.here().begin(), agents_.here().end(),
                  [&](const auto& entry) { return is_own_agent(entry.second.agent_id); });
  if (options_.by_agent && !is_here) leaves_at_ = now_ + options_.agent_patience;
}

void Machine::leave() {
  if (std::exchange(left_, true)) return;
  tell_end_to_all();
  // Who is cut off just now looks for us, and after a restart all do: they deserve to hear it.
  const bool unheard =
      std::any_of(roster_.each().begin(), roster_.each().end(), [&](const Member& member) {
        return member.link == 0 && (member.lease_runs() || member.state == SeatState::kSilent);
      });
  emit(Leave{unheard || !agents_.missing().empty() || now_ < all_are_back_});
}

}  // namespace holdfast::controller
