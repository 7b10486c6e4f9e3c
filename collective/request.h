// Request: what a rank asks for in one operation, which must be the same on all ranks; and the
// sentences about it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "collective/numbers.h"
#include "collective/regions.h"

namespace holdfast::collective {

enum class Kind : std::uint8_t {
  kAllReduce,          // In registered memory.
  kAnywhereAllReduce,  // In any other memory; not copied if it lies in a region on every rank.
  kBroadcast,
  kAllGather,
  kBarrier,
  kIntroduction,  // The ranks map regions that a reduction uses for the first time.
};

// Why a request can not be served, whatever the others ask for.
enum class Fault : std::uint8_t { kNone, kUnfit, kNoSuchRoot, kWrongSize, kNoRoom };

// Lies in shared memory.
struct Request {
  std::uint64_t sequence = 0;  // The operation's number in this group; HostPart counts from 1.
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // kAllReduce: in the registered memory. Else 0.
  std::int32_t root = 0;
  Kind kind = Kind::kBarrier;
  Element element = Element::kBytes;
  Op op = Op::kSum;
  Fault fault = Fault::kNone;
  // kAnywhereAllReduce: where this rank's numbers lie. kIntroduction: region 1 if this rank has
  // mapped all regions, else 0. May differ between ranks.
  RegionAddress address;
  // Whether two ranks ask for the same; their addresses do not matter.
  bool operator==(const Request& other) const {
    return sequence == other.sequence && bytes == other.bytes && offset == other.offset &&
           root == other.root && kind == other.kind && element == other.element && op == other.op &&
           fault == other.fault;
  }
};

// The request for a reduction of these numbers in any memory.
[[nodiscard]] Request reduction_of(const Numbers& numbers, Op op);

// "an all-reduce of 4096 bytes of float32 at byte 0 (operation 12)"
[[nodiscard]] std::string describe(const Request& request);

// One sentence that says how the ranks' requests differ, or which rank found no room. `directory`:
// the segment's.
[[nodiscard]] std::string describe_mismatch(std::span<const Request> by_rank,
                                            const std::string& directory);

// "rank 3", "ranks 0, 2, 3"
[[nodiscard]] std::string name_ranks(std::span<const int> ranks);

}  // namespace holdfast::collective
