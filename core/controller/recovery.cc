#include "core/controller/recovery.h"

#include <algorithm>
#include <utility>

#include "core/controller/belief.h"
#include "core/planner/planner.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

// For each agent: at most 1000 are told a second.
constexpr Duration kToldOfProgress = std::chrono::milliseconds(1);

constexpr std::size_t kMostHolds = 16 * 1024;  // Bytes of Progress::holds.

// A reason that a process gives is stored or sent to all, so its size is limited.
Reason bounded(Reason reason) {
  reason.awaited.clear();
  for (std::string* text : {&reason.node_id, &reason.host, &reason.other, &reason.other_host}) {
    if (text->size() > kMaxNameBytes) text->resize(kMaxNameBytes);
  }
  if (reason.detail.size() > kMaxTextBytes) reason.detail.resize(kMaxTextBytes);
  return reason;
}

}  // namespace

bool Recovery::speaks_for_a_place(Link link) const {
  const Agent* agent = job_.agents.find(link);
  if (agent == nullptr) return false;
  const auto& nodes = agent->nodes;
  return std::any_of(nodes.begin(), nodes.end(), [&](const std::string& node_id) {
    return !roster_.assembled() || roster_.rank_of(node_id) != kNoRank;
  });
}

void Recovery::receive(Link link, const wire::Report& said_here) {
  const Rank rank = connections_.rank_at(link);
  if (rank == kNoRank) return;
  if (contradicts_plan(rank, said_here)) return begin_without_pages(rank, 1);
  if (formation_.stage != Stage::kStopping) return;
  wire::Report m = said_here;
  if (m.generation != formation_.generation || roster_.at(rank).seat.finished) return;
  if (m.held.size() > roster_.members().size()) m.held.resize(roster_.members().size());  // P44
  const bool has_moved = roster_.at(rank).seat.moved;
  if (has_moved) {
    rendezvous_.set_moved(rank);
    // The memory here may hold what the rank left on an earlier stay. That only shows how far the
    // job was.
    if (m.version != kNoVersion) formation_.reached = std::max(formation_.reached, m.version);
  }
  // If the job begins again with a snapshot, what the rank still has is to be given up.
  if (has_moved || (formation_.loads && m.version != formation_.version)) {
    m.version = m.staged = kNoVersion;
    m.held.clear();
  }
  const Said said = rendezvous_.said_by(rank, m);
  if (!is_sound(said)) return disbelieve(rank, m.version, said.told);
  roster_.alter(roster_.at(rank), [](Member& member) { member.joined = true; });
  rendezvous_.set_report(rank, std::move(m));
  maybe_plan();
}

// Whether the rank has found out, after the plan, that pages of what it has reported were lost.
bool Recovery::contradicts_plan(Rank rank, const wire::Report& m) const {
  const auto lacks = [](const wire::Report& r) { return r.has_lost_shared || r.has_lost_private; };
  if (formation_.stage != Stage::kRepairing || m.generation != formation_.generation) return false;
  const auto before = rendezvous_.reports().find(rank);
  return before != rendezvous_.reports().end() && lacks(m) && !lacks(before->second);
}

void Recovery::begin_without_pages(Rank rank, std::int64_t pages) {
  const wire::Seat& seat = roster_.at(rank).seat;
  const Reason lost{.kind = Reason::Kind::kPagesLost,
                    .rank = rank,
                    .pid = seat.pid,
                    .count = pages,
                    .host = seat.host};
  rendezvous_.begin(lost);
  remarks_.tell(rank, lost);  // Afterwards: nobody waits for this to be durable.
}

// The rank's process has said what can not be, so it is not trusted with the state. It is ended,
// and a successor reports anew.
void Recovery::disbelieve(Rank rank, Version said, Version possible) {
  const Member& member = roster_.at(rank);
  const Reason why{.kind = Reason::Kind::kImpossible,
                   .rank = rank,
                   .pid = member.seat.pid,
                   .count = static_cast<std::int64_t>(possible),
                   .version = said};
  job_.refuse(member.link, why);
  membership_.evict(member);
  membership_.detach(member);
  roster_.alter(member, [&](Member& changed) {
    changed.ending = {};
    changed.heard = job_.now;
  });
  roster_.advance(member, SeatEvent::kDied);
  rendezvous_.rank_lost(rank, why, 0);
  membership_.answer_waiting(member.seat.node_id);
}

// Some ranks may have reported what can not be. Those that still train get successors, for which
// the plan waits: then this returns true. Those that have ended are added to `ended`, and what they
// hold does not count.
bool Recovery::disbelieve_some(std::set<Rank>& ended) {
  std::vector<Said> all;
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    const wire::Seat& seat = roster_.at(rank).seat;
    all.push_back(seat.finished ? Said{.rank = rank,
                                       .version = seat.version,
                                       .staged = seat.version,
                                       .told = seat.version}
                                : rendezvous_.said_by(rank, rendezvous_.reports().at(rank)));
  }
  const Belief belief = believe(all);
  bool waits = false;
  for (const Rank rank : belief.impossible) {
    if (roster_.at(rank).seat.finished) {
      ended.insert(rank);
    } else {
      disbelieve(rank, rendezvous_.reports().at(rank).version, belief.version);
      waits = true;
    }
  }
  return waits;
}

void Recovery::maybe_plan() {
  if (formation_.stage != Stage::kStopping || rendezvous_.reports().empty()) return;
  // If a rank has deserted, the others can not go on and hear so at once. Otherwise wait for all
  // reports.
  const std::size_t out = roster_.in_state(SeatState::kFinished) +
                          roster_.in_state(SeatState::kOrphaned) +
                          roster_.in_state(SeatState::kLeft);
  if (rendezvous_.reports().size() + out < roster_.members().size() &&
      roster_.in_state(SeatState::kDeserted) == 0)
    return;
  for (Rank rank = 0; rank < roster_.world_size(); ++rank) {
    const Member& member = roster_.at(rank);
    const bool never_trained = member.seat.finished && member.seat.version == kNoVersion;
    if (never_trained || member.state == SeatState::kDeserted) {
      return job_end_.end(false, {.kind = Reason::Kind::kEndedWithoutTraining, .rank = rank});
    }
    if (!member.seat.finished && !rendezvous_.reports().contains(rank)) return;
  }
  std::set<Rank> disbelieved;
  if (disbelieve_some(disbelieved)) return;
  // Remembered now: a rank that has committed it may give its place away below, and its report is
  // lost.
  for (const auto& [rank, report] : rendezvous_.reports()) {
    if (report.version != kNoVersion) {
      formation_.reached = std::max(formation_.reached, report.version);
    }
  }
  if (transfers_.carry_out(disbelieved)) return;
  const auto plan = planner::plan(rendezvous_.table(disbelieved, {}));
  // The job never goes back behind a version from which all ranks have gone on.
  if (plan.loads()) tell_of_snapshot(plan.version);
  if (plan.loads() || (plan.possible && plan.version >= formation_.version)) {
    return rendezvous_.carry_out(plan);
  }
  const bool shared = plan.shard == kSharedState;
  job_end_.end(false, {.kind = Reason::Kind::kNoPlan,
                       .rank = shared ? kNoRank : plan.lacking,
                       .version = std::max(plan.version, formation_.version)});
}

void Recovery::tell_of_snapshot(Version version) {
  const auto steps = std::max(formation_.reached, version) - version;
  const Reason told{.kind = Reason::Kind::kFromSnapshot,
                    .count = static_cast<std::int64_t>(steps),
                    .version = version,
                    .detail = rendezvous_.snapshot_of(version)};
  remarks_.tell(kNoRank, told);
}

// This rank has made a step in the running generation. The last rank to do so ends the recovery.
void Recovery::proven(Rank rank, Version version) {
  if (!rendezvous_.prove(rank)) return;
  groups_lost_ = 0;
  job_.emit(
      Note{Note::Kind::kRecovered, formation_.generation, version, kNoRank, formation_.cause, 0});
  transfers_.proven();
}

bool Recovery::receive(Link link, const wire::Progress& m) {
  const Rank rank = connections_.rank_at(link);
  if (rank == kNoRank || formation_.stage != Stage::kRunning) return false;
  const Member& member = roster_.at(rank);
  if (m.generation != formation_.generation || member.seat.finished) return false;
  if (m.version < member.version) {
    disbelieve(rank, m.version, member.version);
    return false;
  }
  if (m.version > member.version) roster_.set_stepped(member, job_.now);
  roster_.set_version(member, m.version);
  if (rank < job_.workers()) {
    roster_.set_loss(member, loss_ = m.loss);
  } else if (!m.holds.empty() && m.holds.size() <= kMostHolds) {
    roster_.set_holds(member, m.holds);
  }
  reach(m.version);
  proven(rank, m.version);
  if (!progress_told_) progress_told_.emplace();
  maybe_tell_progress();
  return true;
}

// This version has been committed. The first one is stored at once: the fact that a step was made
// must outlive this scheduler (P43).
void Recovery::reach(Version version) {
  const bool first = formation_.reached == 0 && version > 0;
  formation_.reached = std::max(formation_.reached, version);
  if (first) job_.store();
}

// False before all have made a step in this generation: an agent starts its next spare when it is
// told, and until then the recovery needs the processors.
bool Recovery::has_progress_to_tell() const {
  return formation_.stage == Stage::kRunning && rendezvous_.is_proven() && progress_told_ &&
         *progress_told_ != std::pair(formation_.generation, roster_.least_version());
}

// Tells all agents how far all ranks are. The more agents there are, the less often this is done.
void Recovery::maybe_tell_progress() {
  if (!has_progress_to_tell() || job_.now < progress_next_) return;
  progress_told_.emplace(formation_.generation, roster_.least_version());
  progress_next_ =
      job_.now + kToldOfProgress * static_cast<Duration::rep>(job_.agents.here().size());
  job_.tell_agents(wire::JobProgress{formation_.generation, roster_.least_version(), loss_,
                                     formation_.recoveries});
}

// A rank's death would be known by now, so a connection has failed, or the rank has lost pages. All
// ranks may try again.
void Recovery::receive(Link link, const wire::GroupLost& m) {
  const Rank rank = connections_.rank_at(link);
  if (rank == kNoRank || formation_.stage != Stage::kRunning) return;
  if (m.generation != formation_.generation || roster_.at(rank).seat.finished) return;
  if (++groups_lost_ > kMaxGroupsLost) {
    const bool pages = m.pages > 0;
    return job_end_.end(
        false, {.kind = pages ? Reason::Kind::kPagesLostTooOften : Reason::Kind::kGroupLostTooOften,
                .rank = rank,
                .count = kMaxGroupsLost,
                .host = pages ? roster_.at(rank).seat.host : ""});
  }
  if (m.pages == 0) return rendezvous_.begin({.kind = Reason::Kind::kGroupLost, .rank = rank});
  begin_without_pages(rank, m.pages);
}

void Recovery::receive(Link link, const wire::Remark& m) {
  const Rank rank = connections_.rank_at(link);
  if (rank == kNoRank || job_.has_ended()) return;
  Reason remark = bounded(m.reason);
  remark.rank = rank;
  remark.pid = roster_.at(rank).seat.pid;
  remark.host = roster_.at(rank).seat.host;
  remark.detail = wire::sentence(std::move(remark.detail));
  remarks_.tell(rank, remark);
}

void Recovery::receive(Link link, const wire::Finished& m) {
  const Rank rank = connections_.rank_at(link);
  if (rank == kNoRank || job_.has_ended()) return;
  const Member& member = roster_.at(rank);
  const Version told = std::max(formation_.version, member.version);
  if (!member.seat.finished && m.version < told) return disbelieve(rank, m.version, told);
  rendezvous_.drop_report(rank);
  if (!member.seat.finished) {
    roster_.alter(member, [&](Member& changed) {
      changed.seat.finished = true;
      changed.seat.version = changed.version = m.version;
    });
    formation_.reached = std::max(formation_.reached, m.version);
    roster_.advance(member, SeatEvent::kTrainingEnded);
    rendezvous_.set_ended(rank);
    job_.store();
    proven(rank, m.version);
  }
  job_.send(link, wire::Farewell{});
  maybe_plan();
}

void Recovery::receive(Link link, const wire::Failed& m) {
  if (job_.has_ended()) return;
  const Rank rank = connections_.rank_at(link);
  if (rank == kNoRank && !speaks_for_a_place(link)) return;
  Reason reason = bounded(m.reason);
  reason.rank = rank;
  job_end_.end(false, std::move(reason));
}

std::optional<Instant> Recovery::deadline() const {
  return has_progress_to_tell() ? std::optional(progress_next_) : std::nullopt;
}

}  // namespace holdfast::controller
