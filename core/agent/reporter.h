// Reports the state of this host to the scheduler: its places, its spares, the verdicts of its
// rehearsals, and the ranks that stand still. Each report is whole, so a lost one costs nothing.
#pragma once

#include "core/agent/job.h"
#include "core/agent/rehearsal_runner.h"
#include "core/agent/spares.h"
#include "core/agent/stall_watch.h"

namespace holdfast::agent {

class Reporter {
 public:
  Reporter(Job& job, const Spares& spares, const RehearsalRunner& rehearsals,
           const StallWatch& stalls)
      : job_(job), spares_(spares), rehearsals_(rehearsals), stalls_(stalls) {}

  void report();
  void report_changes();  // All but changed places, which are reported at once.

 private:
  Job& job_;
  const Spares& spares_;
  const RehearsalRunner& rehearsals_;
  const StallWatch& stalls_;
};

}  // namespace holdfast::agent
