// Faults: which could strike now, what each does, and which failures of a job they justify.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/agent.h"
#include "sim/connections.h"
#include "sim/deadlines.h"
#include "sim/describe.h"
#include "sim/job.h"
#include "sim/journal.h"
#include "sim/memory.h"
#include "sim/scheduler.h"
#include "sim/snapshot_writers.h"
#include "sim/trainer.h"
#include "sim/transition.h"
#include "sim/worker.h"

namespace holdfast::sim {

// What faults strike.
struct Targets {
  Connections& connections;
  const Journal& journal;
  Memory& memory;
  SchedulerShell& scheduler;
  Workers& workers;
  Training& training;
  Agents& agents;
  SnapshotWriters& writers;
  const Disk& disk;
};

class Faults {
 public:
  Faults(Job& job, const Targets& targets, const Deadlines& deadlines, const Narrator& narrator);

  // Lets a choice decide whether a fault strikes now, and returns whether it did. `transitions`:
  // how many there were so far.
  [[nodiscard]] bool maybe_strike(std::uint32_t transitions);
  [[nodiscard]] std::uint32_t left() const { return left_; }
  // Whether the faults that have happened justify that the job failed for this reason.
  [[nodiscard]] bool justify(const wire::Reason& reason) const;
  // The same for what is on record: that the job begins again with a snapshot.
  [[nodiscard]] bool justify_load() const;

 private:
  [[nodiscard]] bool may_hang(const Worker& worker) const;
  void list_faults();
  void strike(const Mishap& mishap);
  void kill_workers(bool wipe, Index only);
  void wipe_all();
  void cut_power();
  [[nodiscard]] bool is_of_host(const Connection& link, Index agent) const;
  void lose_host(Index agent);
  void cut_host(Index agent);
  void reset_host(Index agent);
  void ask_to_move(Index from);
  void pause_job();
  void stall(Index link, Duration lasting);
  void lose_sight_of(Index agent);
  void stand_still();
  void excuse_last_calls(Instant until);
  [[nodiscard]] bool is_on_last_call(const Worker& worker) const;
  void disturb(Worker& worker, Instant until);
  void disturb(const Connection& link, Instant until);
  [[nodiscard]] bool is_lost(Rank rank) const;
  [[nodiscard]] bool is_all_lost() const;
  [[nodiscard]] bool may_lack(Rank rank) const;
  [[nodiscard]] bool may_have_no_plan(Rank lacking) const;

  Job& job_;
  Connections& connections_;
  const Journal& journal_;
  Memory& memory_;
  SchedulerShell& scheduler_;
  Workers& workers_;
  Training& training_;
  Agents& agents_;
  SnapshotWriters& writers_;
  const Disk& disk_;
  const Deadlines& deadlines_;
  const Narrator& narrator_;
  std::uint32_t left_ = 0;
  std::uint32_t burst_until_ = 0;  // A count of transitions.
  std::vector<Mishap> mishaps_;    // Those that may strike now.
};

}  // namespace holdfast::sim
