// What `holdfast` asks the scheduler of a running job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "runtime/jobs/job_files.h"
#include "wire/messages.h"

namespace holdfast::apps {

// The running job that is meant: the one of this name, or the only one of this user on this host.
struct ChosenJob {
  std::optional<runtime::FoundJob> job;  // Its scheduler is in reach, as far as is known here.
  std::string why;                       // Where there is none,
  int code = 0;                          // with the exit code: 1, or 2 if one has to be named.
  std::vector<std::string> names;        // Of all that were to choose from.
};
[[nodiscard]] ChosenJob choose_job(const std::string& name);

// Its scheduler's first answer. Proves itself with the job's token, which this user alone can read.
// Requires that the job has a scheduler, or an agent of this host that knows where that runs.
Result<wire::Message> ask_scheduler(const runtime::FoundJob& job, const wire::Message& question,
                                    Duration timeout);

}  // namespace holdfast::apps
