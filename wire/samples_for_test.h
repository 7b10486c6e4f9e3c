// One message of every kind with the extremes of its members' types, and damage to their bytes, for
// the tests of this room.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "base/prng.h"
#include "wire/messages.h"
#include "wire/record.h"

namespace holdfast::wire {

inline constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
inline constexpr auto kLeast32 = std::numeric_limits<std::int32_t>::min();
inline constexpr auto kMost32 = std::numeric_limits<std::int32_t>::max();
inline constexpr auto kLeast64 = std::numeric_limits<std::int64_t>::min();

inline std::vector<Message> extreme_messages() {
  return {
      Register{"job", "nöde", kMost, kMost, "host", kLeast64, 4294967295U, kMost, "memory"},
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
      Resume{kMost, 0, kLeast32},
      Progress{2, 3, -std::numeric_limits<double>::infinity()},
      JobProgress{kMost, kMost, std::numeric_limits<double>::denorm_min(), kMost},
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
  return {"job",     kMost, {{"a", kMost, kMost, true, kMost, -5}, {}},
          kMost,     true,  kNoVersion,
          kMost,     true,  true,
          "all good"};
}

// Flips, cuts, doubles and overwrites.
inline std::string mutate(std::string bytes, Prng& random) {
  const auto changes = 1 + random.below(3);
  for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    const std::size_t at = random.below(bytes.size());
    switch (random.below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random.next());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, 1 + random.below(8)));
        break;
      default:
        bytes[at] = random.below(2) == 0 ? '\xff' : '\0';
        break;
    }
  }
  return bytes;
}

}  // namespace holdfast::wire
