// Who gets the places of this host: a new process, or a spare. A place is given to one process at a
// time, and each process that gets it has a higher attempt number than those before.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "core/agent/events.h"
#include "core/agent/job.h"
#include "core/agent/rehearsal_runner.h"
#include "core/agent/reporter.h"
#include "core/agent/shutdown.h"
#include "core/agent/spares.h"
#include "wire/messages.h"

namespace holdfast::agent {

// How often in a row the start of a process is tried: memory or process numbers may be lacking for
// a moment only.
inline constexpr std::int32_t kSpawnTries = 5;

class Placement {
 public:
  Placement(Job& job, Spares& spares, Shutdown& shutdown, RehearsalRunner& rehearsals,
            Reporter& reporter)
      : job_(job),
        spares_(spares),
        shutdown_(shutdown),
        rehearsals_(rehearsals),
        reporter_(reporter) {}

  void start_all();
  void died(Place& place, const Died& e);  // Requires that the process has this place.
  void explain(const Died& e);  // It has become known how the former process of a place ended.
  void not_started(const SpawnFailed& e);
  void pause_over(std::uint64_t pause);
  void receive(const wire::Places& m);

 private:
  void start(Place& place);
  void give(Place& place);
  void say_end(const Place& place, const Died& e);
  bool repeats_its_error(Place& place, const Died& e);
  std::int32_t drop_others(const std::set<std::string>& granted);
  bool take_lacking(std::set<std::string> granted);

  Job& job_;
  Spares& spares_;
  Shutdown& shutdown_;
  RehearsalRunner& rehearsals_;
  Reporter& reporter_;
};

}  // namespace holdfast::agent
