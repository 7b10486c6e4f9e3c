// JobParts: what a Job and its State share; and how errors of the rooms below become Failures.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "holdfast/job.h"
#include "runtime/worker/worker.h"

namespace holdfast::detail {

struct JobParts {
  std::unique_ptr<runtime::Worker> worker;
  bool has_state = false;  // Then ~State reports the end of the training, not ~Job.
  int exceptions = 0;      // std::uncaught_exceptions() when the Job was made.
};

// Throws a Failure for an error: the public interface throws, the code below returns Results.
inline void must(const Status& status) {
  if (!status) throw Failure(status.error().what);
}
template <class T>
T must(Result<T> result) {
  if (!result) throw Failure(result.error().what);
  return *std::move(result);
}

// Ends the job for all ranks.
[[noreturn]] inline void fail(runtime::Worker& worker, std::string why) {
  throw Failure(worker.fail(std::move(why)).what);
}

}  // namespace holdfast::detail
