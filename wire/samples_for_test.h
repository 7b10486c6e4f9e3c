// One message of every kind with the extremes of its members' types, for the tests of this room.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "wire/messages.h"
#include "wire/record.h"

namespace holdfast::wire {

inline constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
inline constexpr auto kLeast32 = std::numeric_limits<std::int32_t>::min();
inline constexpr auto kMost32 = std::numeric_limits<std::int32_t>::max();
inline constexpr auto kLeast64 = std::numeric_limits<std::int64_t>::min();

inline std::vector<Message> extreme_messages() {
  return {
      Register{"job", "nöde", kMost, kMost, "host", kLeast64, 4294967295U, kMost},
      Accepted{kLeast32, kMost32, kMost},
      Refused{"no \"room\"\n"},
      Waiting{"too few"},
      AgentState{
          "job", "agent", "host", {{"a", kMost, 1, true, kLeast32, "was killed", kMost}, {}}},
      Evict{"a", kMost},
      Stop{kMost, "rank 3 died"},
      Report{1, kNoVersion, kNoVersion},
      Repair{kMost, kMost, RepairKind::kBegin, kMost32},
      Repaired{kMost},
      Resume{kMost, 0},
      Progress{2, 3, -std::numeric_limits<double>::infinity()},
      JobProgress{kMost, kMost, std::numeric_limits<double>::denorm_min()},
      Finished{kMost, 1},
      Farewell{},
      Failed{"the loss is NaN"},
      JobEnded{true, "done"},
      StatusQuery{},
      StatusReply{"{}"},
      Heartbeat{},
  };
}

inline Record extreme_record() {
  return {"job",     kMost, {{"a", kMost, kMost, true, kMost}, {}},
          kMost,     true,  kNoVersion,
          kMost,     true,  true,
          "all good"};
}

}  // namespace holdfast::wire
