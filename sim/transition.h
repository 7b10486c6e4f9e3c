// Transition: one thing that may happen next in the world.
#pragma once

#include <cstdint>

#include "sim/processes.h"
#include "sim/setup.h"

namespace holdfast::sim {

struct Transition {
  // A run's hash depends on these numbers: add new ones at the end.
  enum class Kind : std::uint8_t {
    kUp,
    kDown,
    kSchedulerHears,
    kClientHears,
    kStoreDone,
    kControllerTimer,
    kSchedulerStart,
    kSchedulerExit,
    kSchedulerSignal,
    kConnect,
    kAgentConnect,
    kTrain,
    kSumsIdle,
    kExit,
    kSignal,
    kUnreachable,
    kPromote,
    kDied,
    kSpawnFailed,
    kLook,
    kPauseOver,
    kGrace,
    kAgentAlone,
    kPersonWorker,
    kPersonScheduler,
    kProof,
    kNotThere,
    kAskConnect,
    kAddressesFound,
    kAddressesOverdue,
    kRehearsalEnds,
    kSnapshotDone,
    kPersonResumes
  };

  Kind kind;
  Index index;
  Index agent = 0;  // The agent, if the transition is one of an agent.
};

// A fault that may strike: at the worker, connection, agent or generation `index`.
struct Mishap {
  Fault fault;
  Index index;
};

}  // namespace holdfast::sim
