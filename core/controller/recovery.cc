// From a fault to the next step: STOP, PLAN, REPAIR, REFORM, RESUME.
#include <algorithm>

#include "base/assert.h"
#include "base/text.h"
#include "core/controller/machine.h"

namespace holdfast::controller {

void Machine::begin(std::string cause) {
  if (phase_ != Phase::kStopping && phase_ != Phase::kRepairing) waiting_since_ = now_;
  phase_ = Phase::kStopping;
  cause_ = std::move(cause);
  reports_.clear();
  mending_.clear();
  unproven_.clear();
  ++record_.generation;
  record_.resumed = false;
  // The number must be durable before anyone sees it: after a crash it could be given twice.
  store();
  emit(Note{Note::Kind::kStop, record_.generation, record_.version, kNoRank, cause_, 0});
  for (Rank rank = 0; rank < world_size(); ++rank) {
    if (!lease(rank).finished) {
      send(member_at(rank)->link, wire::Stop{record_.generation, cause_});
    }
  }
}

void Machine::rank_lost(Rank rank, const std::string& cause, std::uint64_t detected_ns) {
  if (phase_ == Phase::kEnded) return;
  emit(Note{Note::Kind::kFault, record_.generation, record_.version, rank, cause, detected_ns});
  if (lease(rank).finished) return;  // Nobody waits for it; begin() comes with its successor.
  if (phase_ == Phase::kStopping) {
    reports_.erase(rank);
    waiting_since_ = now_;
  } else {
    begin(cause);
  }
}

void Machine::receive(Link link, const wire::Report& m) {
  const Rank rank = rank_at(link);
  if (rank == kNoRank || phase_ != Phase::kStopping || m.generation != record_.generation) return;
  if (lease(rank).finished) return;
  member_at(rank)->joined = true;
  reports_[rank] = m;
  maybe_plan();
}

void Machine::maybe_plan() {
  if (phase_ != Phase::kStopping || reports_.empty()) return;
  std::vector<planner::Holding> holdings;
  for (Rank rank = 0; rank < world_size(); ++rank) {
    const bool never_trained = lease(rank).finished && lease(rank).version == kNoVersion;
    if (never_trained || (member_at(rank)->left && !lease(rank).finished)) {
      end(false,
          cat("rank ", rank, " has ended without training, but others want to train with it"));
      return;
    }
    if (lease(rank).finished) {
      holdings.push_back({lease(rank).version, lease(rank).version, false});
    } else if (const auto report = reports_.find(rank); report != reports_.end()) {
      holdings.push_back({report->second.version, report->second.staged, true});
    } else {
      return;
    }
  }
  plan_ = planner::plan(holdings, planner::replicated(world_size()));
  if (!plan_.possible) {
    end(false, cat("the state can not be recovered: ", plan_.why));
    return;
  }
  emit(Note{Note::Kind::kPlan, record_.generation, plan_.version, kNoRank, plan_.why, 0});
  phase_ = Phase::kRepairing;
  round_ = 0;
  next_round();
}

// First what each rank does with its own arena, then the copies: a source must be whole before.
// A member carries out one order a generation; a rank has one, so the rounds never meet in it.
void Machine::next_round() {
  while (mending_.empty()) {
    if (++round_ > 2) return resume();
    for (Rank rank = 0; rank < world_size(); ++rank) {
      const auto act = plan_.orders[static_cast<std::size_t>(rank)].act;
      const bool own = act == planner::Act::kFinish || act == planner::Act::kBegin;
      if (round_ == 1 ? own : act == planner::Act::kReceive) mending_.insert(rank);
    }
  }
  for (const Rank rank : mending_) send_repair(rank);
}

void Machine::send_repair(Rank rank) {
  const auto& order = plan_.orders[static_cast<std::size_t>(rank)];
  auto kind = wire::RepairKind::kReceive;
  if (order.act == planner::Act::kFinish) kind = wire::RepairKind::kFinish;
  if (order.act == planner::Act::kBegin) kind = wire::RepairKind::kBegin;
  send(member_at(rank)->link, wire::Repair{record_.generation, plan_.version, kind, order.source});
}

void Machine::receive(Link link, const wire::Repaired& m) {
  const Rank rank = rank_at(link);
  if (phase_ != Phase::kRepairing || m.generation != record_.generation) return;
  if (mending_.erase(rank) == 1 && mending_.empty()) next_round();
}

void Machine::resume() {
  phase_ = Phase::kRunning;
  record_.resumed = true;
  record_.version = plan_.version;
  if (record_.generation > 1) ++record_.recoveries;
  store();
  emit(Note{Note::Kind::kResume, record_.generation, plan_.version, kNoRank, cause_, 0});
  for (Rank rank = 0; rank < world_size(); ++rank) {
    if (lease(rank).finished) continue;
    unproven_.insert(rank);
    member_at(rank)->version = plan_.version;
    send(member_at(rank)->link, wire::Resume{record_.generation, plan_.version, ended_rank()});
  }
}

// One that will not join the others' group any more, if there is such (P33).
Rank Machine::ended_rank() const {
  const auto found = std::find_if(record_.ranks.begin(), record_.ranks.end(),
                                  [](const wire::Lease& lease) { return lease.finished; });
  if (found == record_.ranks.end()) return kNoRank;
  return static_cast<Rank>(found - record_.ranks.begin());
}

// It has made a step in the running generation; who is last to do so ends the recovery.
void Machine::proven(Rank rank, Version version) {
  if (unproven_.erase(rank) == 0 || !unproven_.empty()) return;
  emit(Note{Note::Kind::kRecovered, record_.generation, version, kNoRank, cause_, 0});
}

void Machine::receive(Link link, const wire::Progress& m) {
  const Rank rank = rank_at(link);
  if (rank == kNoRank || phase_ != Phase::kRunning || m.generation != record_.generation) return;
  member_at(rank)->version = m.version;
  member_at(rank)->loss = m.loss;
  proven(rank, m.version);
  Version least = m.version;
  for (const auto& [node_id, member] : members_) least = std::min(least, member.version);
  tell_agents(wire::JobProgress{record_.generation, least, m.loss, record_.recoveries});
}

void Machine::receive(Link link, const wire::Finished& m) {
  const Rank rank = rank_at(link);
  if (rank == kNoRank || phase_ == Phase::kEnded) return;
  Member& member = *member_at(rank);
  reports_.erase(rank);
  if (!lease(rank).finished) {
    lease(rank).finished = true;
    lease(rank).version = m.version;
    member.version = m.version;
    store();
    proven(rank, m.version);
  }
  send(link, wire::Farewell{});
  maybe_plan();
}

void Machine::receive(Link link, const wire::Failed& m) {
  if (phase_ == Phase::kEnded) return;
  const Rank rank = rank_at(link);
  if (rank == kNoRank && !agents_.contains(link)) return;
  end(false, rank == kNoRank ? m.reason : cat("rank ", rank, ": ", m.reason));
}

void Machine::maybe_all_left() {
  if (phase_ == Phase::kEnded || record_.ranks.empty()) return;
  const bool all = std::all_of(members_.begin(), members_.end(),
                               [](const auto& entry) { return entry.second.left; });
  if (all) end(true, cat("all ", world_size(), " ranks have ended in good order"));
}

// All processes of the job have ended in good order, and none has ever asked for a rank.
void Machine::maybe_nobody_came() {
  if (!record_.ranks.empty() || !members_.empty()) return;
  std::set<std::string> ended;  // By name: an agent that came back is here twice for a moment.
  for (const auto& [link, state] : agents_) {
    for (const auto& slot : state.slots) {
      if (slot.attempt > 0 && !slot.alive && slot.exit_code == 0) ended.insert(slot.node_id);
    }
  }
  if (ended.size() < static_cast<std::size_t>(options_.world_size)) return;
  end(true,
      cat("all ", ended.size(), " workers have ended (exit code 0) and none has asked for a rank"));
}

void Machine::end(bool success, std::string reason) {
  phase_ = Phase::kEnded;
  record_.ended = true;
  record_.success = success;
  record_.reason = std::move(reason);
  store();
  const wire::JobEnded message{success, record_.reason};
  for (const auto& [node_id, member] : members_) send(member.link, message);
  for (const auto& [link, who] : knocks_) send(link, message);
  tell_agents(message);
  emit(End{success, record_.reason});
}

}  // namespace holdfast::controller
