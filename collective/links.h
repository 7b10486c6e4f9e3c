// Links: how ranks of a group that lie on different hosts reach each other.
//
// A Link is one connection between two ranks of a group, for one purpose and one generation. It is
// never used again: whatever ends an operation early cuts it, so data of an old generation can not
// be taken for data of a new one. The code that makes the connections has proven that the peer
// belongs to the job (runtime/worker/data_links.h); tests use pairs of sockets.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::collective {

// One thread at a time, except for cut(). If is_duplex(), one thread may read while another writes.
class Link {
 public:
  enum class State : std::uint8_t {
    kMoved,         // At least one byte.
    kWantsToRead,   // Nothing moved: try again once the descriptor is readable.
    kWantsToWrite,  // Nothing moved: try again once the descriptor is writable.
    kOver,          // Nothing moves any more: the peer or its host is gone, or the link was cut.
  };
  struct Moved {
    State state = State::kMoved;
    std::size_t bytes = 0;
  };

  virtual ~Link() = default;  // Cuts it.
  // read() and write() never block. `bytes` and `into` are not empty.
  [[nodiscard]] virtual Moved read(std::span<std::byte> into) = 0;
  // After kWantsToRead or kWantsToWrite, the next write() has to begin with the same bytes; they
  // may lie at another address.
  [[nodiscard]] virtual Moved write(std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual bool is_duplex() const = 0;
  [[nodiscard]] virtual int descriptor() const = 0;  // For poll(); the same for its whole life.
  // From here on both ends get kOver, at once. Any thread; may be called again.
  virtual void cut() = 0;
  // What was read is not what the peer has written: tells people so, and cuts the link.
  virtual void damaged() { cut(); }
};

// A link that this rank asks for. The peer asks for it, too; one of the two connects.
struct Wanted {
  Rank peer = kNoRank;        // Its rank in the world.
  std::uint32_t channel = 0;  // Tells links between the same two ranks apart; equal at both.
  bool connects = false;      // This rank connects, and the peer waits for it.
};

class Links {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~Links() = default;
  // Makes all links, in the order of `wanted`, for the group named `group` ("": the world's) in
  // that generation. Errors (kWorld): `cancel`; the deadline has passed (names the peers that are
  // missing). Any thread; several groups may be formed at a time.
  [[nodiscard]] virtual Result<std::vector<std::unique_ptr<Link>>> make(
      const std::string& group, Generation generation, std::span<const Wanted> wanted,
      Deadline deadline, const std::stop_token& cancel) = 0;
};

// Which ranks share a host, and how ranks of different hosts reach each other.
struct Layout {
  std::vector<int> host_of;      // By rank: equal numbers, same host. Empty: all on one host.
  std::vector<int> domain_of;    // By rank: equal numbers fail together. Groups do not use it.
  std::shared_ptr<Links> links;  // Null only if all ranks are on one host.
};

}  // namespace holdfast::collective
