// Starts and ends the rehearsals of this host: when one may begin, what ends it, and what is told
// of it. Rehearsals (core/agent/rehearsals.h) says whose turn it is and what a verdict means.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/agent/events.h"
#include "core/agent/job.h"
#include "core/agent/rehearsals.h"
#include "core/agent/shutdown.h"
#include "core/agent/spares.h"
#include "wire/messages.h"

namespace holdfast::agent {

class RehearsalRunner {
 public:
  RehearsalRunner(Job& job, Spares& spares, Shutdown& shutdown)
      : job_(job), spares_(spares), shutdown_(shutdown), rehearsals_(job.options.rehearsals) {}

  void maybe_begin();
  // A fault was found: ends the rehearsal under way, and none begins before the next step. A
  // recovery has a better use for the processors, and for the state that is looked at.
  void call_off();
  // All ranks have made a step in this generation.
  void hear_of_step(Generation generation);
  void pause_over(std::uint64_t pause);
  void died(const Died& e);                // Requires that the process is under_way().
  void not_started(const SpawnFailed& e);  // Requires that the process is under_way().

  [[nodiscard]] Process under_way() const { return rehearsals_.under_way(); }  // 0: none.
  [[nodiscard]] std::vector<wire::RehearsalState> verdicts() const {
    return rehearsals_.verdicts();
  }

 private:
  void end();
  void conclude(wire::RehearsalState verdict);
  [[nodiscard]] std::vector<std::string> places() const;
  [[nodiscard]] Rehearsals::Pause pauses() {
    return [this](Duration how_long) { return job_.pause(how_long); };
  }

  Job& job_;
  Spares& spares_;
  Shutdown& shutdown_;
  Rehearsals rehearsals_;
};

}  // namespace holdfast::agent
