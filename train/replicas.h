// Replicas: compares the ranks' parameters and optimizer state, which have to be equal. If they
// differ, it ends the job or warns (HOLDFAST_DRIFT). train/drift.h says when, and in which words.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "collective/group.h"
#include "config/settings.h"
#include "runtime/worker/session.h"
#include "runtime/worker/worker.h"
#include "train/drift.h"

namespace holdfast::train {

class Replicas {
 public:
  // `names`: those of the arena's parameters; then those of all first moments, then of all second.
  Replicas(runtime::Worker& worker, runtime::Session& session, std::vector<std::string> names);

  // Call it in each step right after begin_step(): compares if that is due. Throws Failure if it
  // ends the job. Another outcome than kDone: nothing was compared, and the step is void.
  collective::Outcome before_step();
  // Call it at a loop's end. If a comparison is due it waits for the other ranks, and repeats it
  // after a fault.
  void at_end();

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_due(bool at_end) const;
  [[nodiscard]] collective::Outcome compare();
  void read();
  void report(const std::string& difference);

  runtime::Worker& worker_;
  runtime::Session& session_;
  Pace pace_;
  Differences differences_;
  std::vector<std::uint64_t> digests_;
  Reading mine_;
  Clock::time_point left_{};        // When before_step() last returned: a step began then.
  Version following_ = kNoVersion;  // The version that this step makes; kNoVersion: none is timed.
};

}  // namespace holdfast::train
