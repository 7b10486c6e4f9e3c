// Ends processes that hang: those that a signal has stopped, and those that the scheduler has found
// silent or hung. A process that hangs holds up all ranks and may never go on. It is killed before
// it is replaced: alive, it could wake up and write into its successor's arena.
#pragma once

#include <map>

#include "core/agent/events.h"
#include "core/agent/job.h"
#include "core/agent/rehearsal_runner.h"
#include "wire/messages.h"

namespace holdfast::agent {

// In how many looks in a row a process must be found stopped before it is replaced: a tool may stop
// a process for a moment.
inline constexpr int kStoppedLooks = 4;

class HangWatch {
 public:
  HangWatch(Job& job, RehearsalRunner& rehearsals) : job_(job), rehearsals_(rehearsals) {}

  void on(const Looked& e);
  void receive(const wire::Evict& m);
  // How this process has ended. If this agent has killed it because it hung, that is the cause.
  [[nodiscard]] wire::Ending ending_of(const Died& e);

 private:
  Job& job_;
  RehearsalRunner& rehearsals_;
  std::map<Process, int> stopped_;                // In how many looks in a row each was stopped.
  std::map<Process, wire::Ending::Kind> killed_;  // Those that this agent has killed, and why.
};

}  // namespace holdfast::agent
