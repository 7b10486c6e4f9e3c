// World: the simulated job: one scheduler with its journal, workers with arenas and collectives,
// agents or a person who starts them, connections, time, and faults. It drives the machines of
// core/ as the shells do, and decides nothing itself: all that may go one way or another is a
// choice.
//
// This class has the main loop: it lists what could happen next, lets a choice decide, hands the
// transition to the class that it concerns, and checks the end.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/agent.h"
#include "sim/choices.h"
#include "sim/connections.h"
#include "sim/deadlines.h"
#include "sim/describe.h"
#include "sim/disk.h"
#include "sim/exchange.h"
#include "sim/faults.h"
#include "sim/job.h"
#include "sim/journal.h"
#include "sim/memory.h"
#include "sim/outcome.h"
#include "sim/scheduler.h"
#include "sim/setup.h"
#include "sim/snapshot_writers.h"
#include "sim/trainer.h"
#include "sim/transition.h"
#include "sim/worker.h"
#include "sim/worker_events.h"

namespace holdfast::sim {

class World {
 public:
  // A run of the job, which begins with what is on the disk. `log`: gets each transition in words;
  // may be null.
  World(const Setup& setup, std::uint64_t run_id, Disk& disk, Choices& choices,
        std::vector<std::string>* log)
      : disk_(disk), job_(setup, run_id, choices, log) {}
  World(const World&) = delete;  // Its parts refer to each other.
  World& operator=(const World&) = delete;
  Outcome run();

 private:
  void start();
  void list_transitions();
  void list_network();
  void list_processes();
  void put_in_order();
  void tell(const Transition& transition);
  void perform(const Transition& transition);
  void deliver_down(Index link);
  void client_hears(Index link);
  void deliver(const WorkerEvents::Told& told);
  bool advance();
  void beat();
  [[nodiscard]] bool over() const;
  void check_end();
  void check_load();
  void check_pause();
  [[nodiscard]] wire::Reason why_ended() const;
  [[nodiscard]] const wire::Reason* why_ended_by_agents() const;
  void check_deaths_are_known();

  std::map<Incarnation, Instant> seated_;  // When a process was first seen in a place.
  Disk& disk_;
  std::uint64_t loads_ = 0;
  // Each knows only those declared before it.
  Job job_;
  Connections connections_{job_};
  Journal journal_{job_, disk_};
  Memory memory_{job_, journal_};
  SchedulerShell scheduler_{job_, connections_, journal_, memory_};
  ValueExchange exchange_{job_, connections_, scheduler_};
  WorkerEvents events_{[this](const auto& told) { deliver(told); }};
  Workers workers_{job_, connections_, journal_, exchange_, events_};
  Training training_{job_, journal_, memory_, disk_, events_};
  SnapshotWriters writers_{job_, journal_, memory_, disk_};
  Agents agents_{job_, connections_, journal_, scheduler_, workers_, training_, writers_};
  Deadlines deadlines_{job_, connections_};
  Narrator narrator_{job_, scheduler_};
  Faults faults_{
      job_,
      {connections_, journal_, memory_, scheduler_, workers_, training_, agents_, writers_, disk_},
      deadlines_,
      narrator_};

  std::uint32_t transitions_ = 0;
  std::vector<Transition> possible_;
  std::vector<Transition> other_;
};

// Draws the setup of `world` and runs it. Requires: draw_setup() knows the name.
[[nodiscard]] Outcome simulate(const std::string& world, Choices& choices,
                               std::vector<std::string>* log = nullptr);

}  // namespace holdfast::sim
