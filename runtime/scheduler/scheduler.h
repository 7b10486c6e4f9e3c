// The scheduler's shell: connections, journal, timers and reports around the controller machine.
#pragma once

#include "config/settings.h"

namespace holdfast::runtime {

// Serves the job until it ends; called in place of the training program where MS_ROLE=MS_SCHED.
//
// Listens on MS_SCHED_HOST:MS_SCHED_PORT. Keeps its record in <MS_RECOVERY_PATH, else the job's
// runtime folder>/<job>.journal and takes it back if it was started again (by an agent:
// HOLDFAST_ATTEMPT > 1; by hand: MS_ENABLE_RECOVERY=1); otherwise an older one is replaced. Logs to
// stdout; every recovery is a line there and in <runtime folder>/recoveries.jsonl.
//
// Returns the process's exit code: 0 where the job ended well, 1 where it failed or could not be
// served (said on stdout), 128 + signal where it was interrupted. After the end of the job the
// journal is gone; so is the runtime folder, unless an agent looks after it (HOLDFAST_ATTEMPT > 0)
// or a job that failed may be taken up again (MS_ENABLE_RECOVERY=1).
[[nodiscard]] int serve(const config::Settings& settings);

}  // namespace holdfast::runtime
