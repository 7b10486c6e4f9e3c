// Outcome: how a simulated run ended.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "wire/reason.h"

namespace holdfast::sim {

struct Outcome {
  std::string violation;  // The violated invariant; empty: none.
  wire::Reason reason;    // Why the job ended.
  bool success = false;
  std::uint64_t hash = 0;  // A hash of all that happened: equal tapes give equal hashes.
  std::uint32_t transitions = 0;
  std::uint32_t faults = 0;
  std::uint64_t snapshots = 0;  // How many became whole,
  std::uint64_t loads = 0;      // and how often the job began again with one.
  bool is_cut_short = false;    // By a power cut.
  Duration time{};
};

}  // namespace holdfast::sim
