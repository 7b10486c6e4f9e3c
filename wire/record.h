// What the scheduler must not forget: its journal holds exactly one Record, replaced whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"

namespace holdfast::wire {

// A place of the job and who holds it.
struct Lease {
  std::string node_id;
  Incarnation incarnation = 0;
  std::uint64_t attempt = 0;
  bool finished = false;  // Its training ended in good order, at `version`.
  Version version = 0;    // Only where finished.
  std::int64_t pid = 0;   // Of that process; for what people read.
  bool operator==(const Lease&) const = default;
};

struct Record {
  std::string job;
  std::uint64_t run_id = 0;
  std::vector<Lease> ranks;   // By rank; empty until all processes have come.
  Generation generation = 0;  // The newest number in use; 0: none yet.
  bool resumed = false;       // That generation was formed, at `version`.
  Version version = 0;
  std::uint64_t recoveries = 0;
  bool ended = false;
  bool success = false;
  std::string reason;  // Of the end.
  bool operator==(const Record&) const = default;
};

}  // namespace holdfast::wire
