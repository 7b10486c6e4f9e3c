// Agents: the agents as processes: each drives its machine, starts workers, spares and perhaps the
// scheduler, and learns of their deaths.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/connections.h"
#include "sim/job.h"
#include "sim/journal.h"
#include "sim/scheduler.h"
#include "sim/snapshot_writers.h"
#include "sim/trainer.h"
#include "sim/transition.h"
#include "sim/worker.h"

namespace holdfast::sim {

class Agents {
 public:
  Agents(Job& job, Connections& connections, const Journal& journal, SchedulerShell& scheduler,
         Workers& workers, const Training& training, SnapshotWriters& writers)
      : job_(job),
        connections_(connections),
        journal_(journal),
        scheduler_(scheduler),
        workers_(workers),
        training_(training),
        writers_(writers) {}

  void start();
  void start_again(Index lost);  // The command of a lost host, on another one.
  // Adds what the agents could do next.
  void list(std::vector<Transition>& possible) const;
  void perform(const Transition& transition);
  void tell(Index agent, const agent::Event& event);
  [[nodiscard]] bool have_exited() const;
  void check_stopped_are_ended();

  // Faults.
  void interrupt(Index agent);
  void kill(Index agent);
  void stop(Worker& worker, Instant until);
  void hang(Worker& worker);
  [[nodiscard]] bool any_hangs() const;
  void stop_scheduler();
  [[nodiscard]] bool may_fail_spawns() const { return spawns_failed_ + 1 < agent::kSpawnTries; }
  void fail_spawns();

 private:
  [[nodiscard]] agent::Options options_of(Index i, Index of) const;
  void tell_of_spares(Index agent);
  void carry_out(Index agent, const agent::Action& action);
  void check_exit(Index index);
  void kill_child(Index agent, const agent::Kill& kill);
  void spawn(Index agent, const agent::Spawn& what);
  void look(Index agent);
  void begin_looking(Index agent);
  void promote(Index agent, Index which);
  [[nodiscard]] Index worker_of(agent::Process process) const;

  Job& job_;
  Connections& connections_;
  const Journal& journal_;
  SchedulerShell& scheduler_;
  Workers& workers_;
  const Training& training_;
  SnapshotWriters& writers_;
  std::uint32_t spawns_fail_ = 0;   // How many of the next starts of processes fail.
  std::int32_t spawns_failed_ = 0;  // How many have failed; fewer than an agent tries.
};

}  // namespace holdfast::sim
