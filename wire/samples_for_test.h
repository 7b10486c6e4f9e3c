// One message of every kind with the extremes of its members' types, and damage to their bytes, for
// the tests of this room.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "base/prng.h"
#include "wire/messages.h"

namespace holdfast::wire {

inline constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
inline constexpr auto kLeast32 = std::numeric_limits<std::int32_t>::min();
inline constexpr auto kMost32 = std::numeric_limits<std::int32_t>::max();
inline constexpr auto kLeast64 = std::numeric_limits<std::int64_t>::min();

inline Reason extreme_reason() {
  return {.kind = Reason::Kind::kSpareNotStarted,
          .rank = kLeast32,
          .pid = kLeast64,
          .ending = {Ending::Kind::kNotHeard, kLeast32},
          .count = kLeast64,
          .total = 1,
          .version = kMost,
          .node_id = "a",
          .host = "b",
          .other = "c",
          .other_host = "d",
          .detail = "no \"room\"\n",
          .awaited = {{Awaited::Kind::kNotRepaired, kMost32, "a", kLeast64, {}}, {}},
          .doing = Doing::kEnded};
}

inline std::vector<Message> extreme_messages() {
  return {
      Register{"job", "nöde", kMost, kMost, "host", kLeast64, 4294967295U, "memory", "endpoint",
               "domain", true},
      Assignment{kLeast32,
                 kMost32,
                 kMost,
                 kMost,
                 Stage::kEnded,
                 kMost,
                 {Act::kBegin, {kMost32, "host", "endpoint"}, {kLeast32, "h", "e"}, true, "s"},
                 kLeast32,
                 extreme_reason(),
                 kMost,
                 kMost},
      Refused{"no", extreme_reason()},
      Waiting{{.kind = Reason::Kind::kAssembling, .count = 1, .total = 2}, kMost},
      AgentState{"job",
                 "agent",
                 "host",
                 {{"a", kMost, 1, true, {Ending::Kind::kSignalled, 9}, kMost}, {}},
                 4294967295U,
                 4294967295U,
                 {{"a", true}, {}},
                 {{"a", Verdict::kSkipped, kMost, "why"}, {}},
                 {{"a", kMost, kMost, kMost, Doing::kEnded, true, 4294967295U, "why"}, {}},
                 kMost},
      Evict{"a", kMost, true},
      Report{1, kNoVersion, kNoVersion, true, {{kLeast32, kMost, 1}, {}}, true, true},
      Repaired{kMost, kMost, true},
      Progress{2, 3, -std::numeric_limits<double>::infinity(), 4294967295U, 7, "{}"},
      JobProgress{kMost, kMost, std::numeric_limits<double>::denorm_min(), kMost},
      Finished{kMost, 1},
      Farewell{},
      Failed{{.kind = Reason::Kind::kProgram, .detail = "the loss is NaN"}},
      JobEnded{true, {.kind = Reason::Kind::kAllEnded, .total = 2}},
      StatusQuery{},
      StatusReply{"{}"},
      Heartbeat{},
      Put{kMost, "k/1", std::string("v\0\xff", 3), kAnyKeyVersion, kMost},
      Kept{kMost, {.kind = Reason::Kind::kNoRoom, .count = 1, .total = 2}, true, 7},
      Get{kMost, {"k/1", ""}, true, kMost},
      Got{kMost, true, "k/1", std::string("v\0\xff", 3), kMost},
      GroupLost{kMost, 4294967295U},
      Places{{"a", ""}, true},
      Move{"a", "b", true},
      Moved{{.kind = Reason::Kind::kMoves, .count = 2, .host = "a", .other_host = "b"}},
      Addresses{kMost,
                kMost,
                {{4294967295U, 4294967295U, "a"}, {}},
                {0, 4294967295U},
                {4294967295U, 0},
                {1, 65535}},
      AskAddresses{},
      Inspect{"a", kMost},
      Remark{{.kind = Reason::Kind::kReplicas, .detail = "why"}},
      Drill{kLeast32, DrillKind::kCut, Doing::kEnded, kMost, 4294967295U, kMost, "a"},
      Drilled{{.kind = Reason::Kind::kNoDrills}},
      Snapshot{SnapshotWord::kUnreadable,
               kMost,
               kMost,
               "name",
               {{kLeast32, kMost, kMost}, {}},
               {"old", ""},
               "why"},
      Pause{true, kMost, kMost},
      Paused{{.kind = Reason::Kind::kUnpaused, .count = 1}},
  };
}

inline Formation extreme_formation() {
  return {
      .job = "job",
      .run_id = kMost,
      .generation = kMost,
      .stage = Stage::kEnded,
      .version = kNoVersion,
      .recoveries = kMost,
      .roster = {{"a", kMost, kMost, -5, "h", "d", "e", "m", true, "agent", true, true, kMost}, {}},
      .orders = {{Act::kReceive, {kMost32, "host", "endpoint"}}, {}},
      .cause = extreme_reason(),
      .success = true,
      .end = extreme_reason(),
      .drained = {"a", ""},
      .reached = kMost,
      .snapshots = {{kMost, "name"}, {}},
      .loads = true,
      .pauses = kMost};
}

inline Remarked extreme_remark() {
  return {kLeast64, extreme_reason()};
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
