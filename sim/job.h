// Job: the simulated job, which all classes of the world share: its setup, its processes and
// connections, time, and what is kept of the run. It decides nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/prng.h"
#include "sim/checkers.h"
#include "sim/choices.h"
#include "sim/processes.h"
#include "sim/run_log.h"
#include "sim/setup.h"

namespace holdfast::sim {

// The lease is short compared with the checkers' bounds. The timeouts are longer than all faults of
// a run together.
inline constexpr Duration kLease = std::chrono::seconds(3);
inline constexpr Duration kTopologyTimeout = std::chrono::seconds(60);
// How long a process tries to reach a scheduler before it gives up.
inline constexpr Duration kAlonePatience = std::chrono::seconds(60);
inline constexpr Duration kReplacementTimeout = std::chrono::seconds(60);

// A message as it is on its way.
struct Letter {
  std::uint8_t kind = 0;
  std::string body;
};

// A connection of a worker or an agent to the scheduler.
struct Connection {
  Index worker = kNone;  // kNone: an agent's.
  Index agent = kNone;
  std::deque<Letter> up, down;
  bool scheduler_open = true;   // The scheduler's shell has not been told of the end.
  bool client_open = true;      // The client has not been told of the end.
  bool scheduler_gone = false;  // The scheduler's side has ended; the client will be told.
  bool client_gone = false;     // The client's side has ended; the scheduler will be told.
  bool accepted = false;        // The controller has been told of the connection.
  bool exchanges = false;       // It is for key-values only.
  bool closed_by_scheduler = false;
  Instant stalled_until{};
};

struct Job {
  Job(const Setup& setup_of_run, std::uint64_t number_of_run, Choices& choices_of_run,
      std::vector<std::string>* lines)
      : setup(setup_of_run),
        run_id(number_of_run),
        choices(choices_of_run),
        log(lines),
        checkers(setup.ranks, setup.steps) {}

  [[nodiscard]] bool scheduler_runs() const {
    return scheduler.machine && scheduler.paused_until <= now;
  }
  [[nodiscard]] bool is_paused() const {
    return scheduler.machine && scheduler.machine->head().is_paused() &&
           scheduler.machine->stage() != wire::Stage::kEnded;
  }
  [[nodiscard]] bool awake(const Worker& worker) const {
    return worker.alive && worker.paused_until <= now;
  }
  [[nodiscard]] bool flows(const Connection& link) const { return link.stalled_until <= now; }
  [[nodiscard]] bool had(Fault fault) const { return (struck & bit(fault)) != 0; }

  const Setup setup;
  const std::uint64_t run_id;
  Choices& choices;
  RunLog log;
  Checkers checkers;
  Prng prng{1};
  Instant now{};
  bool is_cut_short = false;  // By a power cut.
  std::uint32_t struck = 0;   // The faults that have happened: a mask of bit(Fault).
  Instant last_fault{};       // When the last fault has ended, or will end.

  std::deque<Worker> workers;    // Dead ones, too.
  std::deque<Connection> links;  // The Link of a Connection is its index + 1.
  SchedulerProcess scheduler;
  std::deque<AgentProcess> agents;  // The first one runs the scheduler. Empty: by hand.
  Person person;
  agent::Process next_process = 1'000'000;  // The number of the next process started by hand.
};

}  // namespace holdfast::sim
