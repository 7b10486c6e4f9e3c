// Reports the state of this host to the scheduler: its places, its spares, and the verdicts of its
// rehearsals. Each report is whole, so a lost one costs nothing.
#pragma once

#include "core/agent/job.h"
#include "core/agent/rehearsal_runner.h"
#include "core/agent/spares.h"

namespace holdfast::agent {

class Reporter {
 public:
  Reporter(Job& job, const Spares& spares, const RehearsalRunner& rehearsals)
      : job_(job), spares_(spares), rehearsals_(rehearsals) {}

  void report();
  void report_changed_spares();  // Or verdicts; changed places are reported at once.

 private:
  Job& job_;
  const Spares& spares_;
  const RehearsalRunner& rehearsals_;
};

}  // namespace holdfast::agent
