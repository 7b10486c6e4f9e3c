// Replicas: compares what the ranks hold of parameters and optimizer, which has to be the same, and
// ends the job or warns (HOLDFAST_DRIFT) where it is not. When, and in which words: train/drift.h.
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
  // `names`: of the arena's parameters, then of their moments, as in tensor().
  Replicas(runtime::Worker& worker, runtime::Session& session, std::vector<std::string> names);

  // Before a step, after begin_step(): compares if it is due. Throws Failure where the job ends.
  // Another outcome than kDone: nothing was found out, and the step is void.
  collective::Outcome before_step();
  // At a loop's end: waits for the others if a comparison is due, through faults.
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
  Clock::time_point left_{};        // When before_step() was left last,
  Version following_ = kNoVersion;  // and the version that is one step later.
};

}  // namespace holdfast::train
