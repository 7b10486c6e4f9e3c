// The generation that the ranks form: which have reported, what each is ordered to do, and which
// have made no step in it yet. These are STOP, REPAIR, REFORM and RESUME of
// docs/protocol/recovery.md. Recovery decides which reports are believed, and what is planned with
// them.
#pragma once

#include "core/controller/addresses.h"
#include "core/controller/belief.h"
#include "core/controller/job.h"
#include "core/planner/planner.h"

namespace holdfast::controller {

// Name of the shard that all workers share, in planner::Table.
inline constexpr const char* kSharedState = "state";

class Rendezvous {
 public:
  Rendezvous(Job& job, Addresses& addresses) : job_(job), addresses_(addresses) {}

  void go_on();  // The scheduler has started, maybe with the formation of a predecessor.
  void begin(wire::Reason cause);
  void assign(Rank rank);
  void rank_lost(Rank rank, const wire::Reason& cause, std::uint64_t detected_ns);
  void receive(Link link, const wire::AskAddresses&);

  // The reports of this generation.
  [[nodiscard]] const std::map<Rank, wire::Report>& reports() const { return reports_; }
  void set_report(Rank rank, wire::Report report) { reports_[rank] = std::move(report); }
  void drop_report(Rank rank) { reports_.erase(rank); }
  void set_moved(Rank rank) { moved_.insert(rank); }
  [[nodiscard]] Said said_by(Rank rank, const wire::Report& report) const;
  // What the planner has to know. The copies of ended ranks in `disbelieved` do not count; ranks in
  // `without` count as if they held nothing.
  [[nodiscard]] planner::Table table(const std::set<Rank>& disbelieved,
                                     const std::set<Rank>& without) const;
  void carry_out(const planner::Plan& plan);
  // The name of the newest snapshot of this version; empty: there is none.
  [[nodiscard]] std::string snapshot_of(Version version) const;
  void receive(Link link, const wire::Repaired& m);

  // Whether all ranks have made a step in the running generation.
  [[nodiscard]] bool is_proven() const { return unproven_.empty(); }
  // This rank has made a step. Returns whether it is the last rank to do so.
  [[nodiscard]] bool prove(Rank rank) { return unproven_.erase(rank) != 0 && unproven_.empty(); }
  // As wire::Assignment::ended, for the running generation.
  [[nodiscard]] Rank ended() const { return ended_; }
  void set_ended(Rank rank) { ended_ = ended_ == kNoRank ? rank : ended_; }
  [[nodiscard]] Rank ended_rank() const;

  // The processes that are waited for; and until when, nullopt: without a limit.
  [[nodiscard]] std::vector<wire::Awaited> awaited() const;
  [[nodiscard]] std::optional<Instant> deadline() const;

 private:
  using HeldCopies = std::map<Rank, std::vector<planner::Copy>>;
  [[nodiscard]] HeldCopies held_copies() const;
  void list(Rank rank, const wire::Report& report, const HeldCopies& held,
            planner::Table& table) const;
  void give(const planner::Order& order);
  [[nodiscard]] wire::Location location_of(Rank holder, Rank asker);
  void next_round();
  void resume();

  Job& job_;
  wire::Formation& formation_ = job_.formation;
  Roster& roster_ = job_.roster;
  Addresses& addresses_;
  std::map<Rank, wire::Report> reports_;
  int round_ = 0;  // Round of orders: 1 is work in the own arena, 2 is copies from others.
  std::set<Rank> repairing_;      // Ranks that have an order in this round and have yet to do it.
  std::vector<Rebuilt> rebuilt_;  // What those did that have done it.
  // Ranks that have reported in this generation, on another host than before.
  std::set<Rank> moved_;
  std::set<Rank> unproven_;  // Ranks without a step yet in the running generation.
  Rank ended_ = kNoRank;
  Instant waiting_since_{};  // When the ranks were stopped, or the last one died since.
};

}  // namespace holdfast::controller
