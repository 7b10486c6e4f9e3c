// The generation that the ranks form: who has reported, what each is ordered to do, and who has
// made no step in it yet. STOP, REPAIR, REFORM and RESUME of docs/protocol/recovery.md; whose word
// is believed, and what is planned with it, is Recovery's.
#pragma once

#include "core/controller/addresses.h"
#include "core/controller/belief.h"
#include "core/controller/job.h"
#include "core/planner/planner.h"

namespace holdfast::controller {

inline constexpr const char* kSharedState = "state";  // As of planner::Table.

class Rendezvous {
 public:
  Rendezvous(Job& job, Addresses& addresses) : job_(job), addresses_(addresses) {}

  void go_on();  // This scheduler was started, maybe again.
  void begin(wire::Reason cause);
  void assign(Rank rank);
  void rank_lost(Rank rank, const wire::Reason& cause, std::uint64_t detected_ns);
  void receive(Link link, const wire::AskAddresses&);

  // Of this generation.
  [[nodiscard]] const std::map<Rank, wire::Report>& reports() const { return reports_; }
  void set_report(Rank rank, wire::Report report) { reports_[rank] = std::move(report); }
  void drop_report(Rank rank) { reports_.erase(rank); }
  void set_moved(Rank rank) { moved_.insert(rank); }
  [[nodiscard]] Said said_by(Rank rank, const wire::Report& report) const;
  // What all have reported; of those `without` as if they held nothing.
  [[nodiscard]] planner::Table table(const std::set<Rank>& disbelieved,
                                     const std::set<Rank>& without) const;
  void carry_out(const planner::Plan& plan);
  void receive(Link link, const wire::Repaired& m);

  // All have made a step in the running generation.
  [[nodiscard]] bool is_proven() const { return unproven_.empty(); }
  // This rank has made one. Whether it is the last to do so.
  [[nodiscard]] bool prove(Rank rank) { return unproven_.erase(rank) != 0 && unproven_.empty(); }
  // As of wire::Assignment, for the running generation.
  [[nodiscard]] Rank ended() const { return ended_; }
  void set_ended(Rank rank) { ended_ = ended_ == kNoRank ? rank : ended_; }
  [[nodiscard]] Rank ended_rank() const;

  // Who is waited for, and until when. Nothing: they may take their time.
  [[nodiscard]] std::vector<wire::Awaited> awaited() const;
  [[nodiscard]] std::optional<Instant> deadline() const;

 private:
  using HeldCopies = std::map<Rank, std::vector<planner::Copy>>;
  [[nodiscard]] HeldCopies held_copies() const;
  static void list(Rank rank, const wire::Report& report, const HeldCopies& held,
                   planner::Table& table);
  void give(const planner::Order& order);
  [[nodiscard]] wire::Location location_of(Rank holder, Rank asker);
  void next_round();
  void resume();

  Job& job_;
  wire::Formation& formation_ = job_.formation;
  Roster& roster_ = job_.roster;
  Addresses& addresses_;
  std::map<Rank, wire::Report> reports_;
  int round_ = 0;             // Of the orders: 1 for each its own arena, 2 copies from others.
  std::set<Rank> repairing_;  // Of this round, not yet repaired.
  std::set<Rank> moved_;  // Have reported in this generation, and are on another host than before.
  std::set<Rank> unproven_;  // Have made no step yet in the running generation.
  Rank ended_ = kNoRank;
  Instant waiting_since_{};  // Since when ranks are stopped.
};

}  // namespace holdfast::controller
