// Request: the fingerprint of one operation, which all ranks must share, and its sentence.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "collective/numbers.h"
#include "collective/regions.h"

namespace holdfast::collective {

enum class Kind : std::uint8_t {
  kAllReduce,          // Of registered memory.
  kAnywhereAllReduce,  // Of any memory; without copies where it lies in a region on every rank.
  kBroadcast,
  kAllGather,
  kBarrier,
  kIntroduction,  // Of regions that a sum names for the first time.
};

// What makes a request impossible whatever the others ask.
enum class Fault : std::uint8_t { kNone, kUnfit, kNoSuchRoot, kWrongSize, kNoRoom };

// Lies in shared memory.
struct Request {
  std::uint64_t sequence = 0;  // Of operations of this group, from 1.
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // In the registered memory; 0 where that means nothing.
  std::int32_t root = 0;
  Kind kind = Kind::kBarrier;
  Element element = Element::kBytes;
  Op op = Op::kSum;
  Fault fault = Fault::kNone;
  // Each rank's own; in an introduction: region 1 if it has mapped them all.
  RegionAddress address;
  // Whether two ranks ask for the same.
  bool operator==(const Request& other) const {
    return sequence == other.sequence && bytes == other.bytes && offset == other.offset &&
           root == other.root && kind == other.kind && element == other.element && op == other.op &&
           fault == other.fault;
  }
};

// That of these numbers, anywhere in memory.
[[nodiscard]] Request reduction_of(const Numbers& numbers, Op op);

// "an all-reduce of 4096 bytes of float32 at byte 0 (operation 12)"
[[nodiscard]] std::string describe(const Request& request);

// One sentence that says how the ranks' requests differ, so that they can not be served together.
// `directory`: the segment's.
[[nodiscard]] std::string describe_mismatch(std::span<const Request> by_rank,
                                            const std::string& directory);

// "rank 3", "ranks 0, 2, 3"
[[nodiscard]] std::string name_ranks(std::span<const int> ranks);

}  // namespace holdfast::collective
