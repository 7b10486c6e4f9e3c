// Whereabouts: how far a rank is, and what its training thread does. The rank writes them down for
// its agent, which reads them without the rank's help, also when the rank hangs.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace holdfast {

enum class Doing : std::uint32_t {
  kStarting,    // The program has not come to its training yet.
  kBetween,     // Between two steps: data, an evaluation, a checkpoint.
  kComputing,   // In a step: forward, backward, an exchange of the program's own.
  kSumming,     // At the end of a step, until its sums are done.
  kStaging,     // Writes down the step.
  kCopying,     // Gives its private part to a rank of another host, and takes those of others.
  kCommitting,  // At the commit barrier.
  kUpdating,
  kRecovering,  // Between two generations.
  kEnded,       // The training has ended on this rank.
};
[[nodiscard]] constexpr bool is_known(Doing doing) {
  return doing <= Doing::kEnded;
}

struct Whereabouts {
  Generation generation = 0;
  std::uint64_t operations = 0;  // The newest operation on the group of all ranks that it came to.
  Version version = kNoVersion;  // The newest step that it has made.
  std::uint64_t steps = 0;       // How many steps this process has made.
  Doing doing = Doing::kStarting;
  std::uint64_t team_operations = 0;  // How many operations of some ranks only have ended.
  bool waits_for_team = false;        // It waits for the end of such a one.
  bool operator==(const Whereabouts&) const = default;
};

}  // namespace holdfast
