// Peer words: what two workers say to each other once both have proven that they belong to the job,
// before the bytes of a link or of a state. docs/formats/peers.md has the byte table.
//
// Pure. Any bytes decode to a value or to Error{kPeer}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::runtime {

inline constexpr std::size_t kLongestGroupName = 1024;

// The first message of the worker that has connected.
struct PeerHello {
  enum class What : std::uint8_t { kLink = 1, kState = 2 };

  What what = What::kLink;
  std::uint64_t run_id = 0;
  std::uint64_t number = 0;  // A link's generation; a state's version.
  Rank from = kNoRank;       // The rank that has connected.
  Rank to = kNoRank;  // For a link: the rank to reach. For a state: the rank whose state it is.
  std::uint32_t channel = 0;  // Tells links between the same two ranks apart. For a state: 0.
  std::string group;          // For a link. For a state: "".

  bool operator==(const PeerHello&) const = default;
};

// Requires: the name is no longer than kLongestGroupName.
std::string encode(const PeerHello& hello);
// How many bytes are missing at least; 0: the hello is complete, or the bytes are none.
std::size_t missing_of_hello(std::string_view so_far);
Result<PeerHello> decode_hello(std::string_view bytes);

// Some of a file's bytes.
struct StateRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  bool operator==(const StateRange&) const = default;
};

inline constexpr std::size_t kMostStateRanges = std::size_t{1} << 20;
inline constexpr std::uint64_t kLargestState = std::uint64_t{1} << 46;
inline constexpr std::size_t kLongestRefusal = 4096;

// The beginning of the answer to a request for a state. The bytes of all ranges follow, one after
// the other, and then their digest.
struct StateHead {
  std::string refusal;             // Why the state is not sent. Empty: it is.
  std::uint64_t size = 0;          // The size of the whole file.
  std::vector<StateRange> ranges;  // In order; none is empty, and none overlap.

  bool operator==(const StateHead&) const = default;
};

// Why this head can not be sent; "": it can.
std::string problem_of(const StateHead& head);
// Cuts a refusal to kLongestRefusal. Requires: problem_of(head) is "".
std::string encode(const StateHead& head);
std::size_t missing_of_head(std::string_view so_far);
Result<StateHead> decode_head(std::string_view bytes);

}  // namespace holdfast::runtime
