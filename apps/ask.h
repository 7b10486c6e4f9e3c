// Chooses the job that a `holdfast` command means, and asks its scheduler.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "runtime/jobs/job_files.h"
#include "wire/messages.h"

namespace holdfast::apps {

// The running job that a command means: the one named `name`; or, if `name` is empty, the only one
// of this user on this host.
struct ChosenJob {
  std::optional<runtime::FoundJob> job;  // Its scheduler is in reach, as far as this host knows.
  std::optional<runtime::FoundJob>
      dead;                        // The one that is meant has left files, and nothing lives.
  std::string why;                 // If there is no `job`: why,
  int code = 0;                    // and the exit code: 1; 2 if the user has to name a job.
  std::vector<std::string> names;  // The jobs to choose from.
};
[[nodiscard]] ChosenJob choose_job(const std::string& name);

// Sends `question` to the job's scheduler and returns its first answer. Proves that this user owns
// the job by the job's token, which no other user can read. Requires: the job has a scheduler, or
// an agent of this host that knows where the scheduler runs.
Result<wire::Message> ask_scheduler(const runtime::FoundJob& job, const wire::Message& question,
                                    Duration timeout);

}  // namespace holdfast::apps
