// Links: how ranks of a group that lie on different hosts reach each other.
//
// A Link is one connection between two ranks of a group, for one purpose and one generation. It is
// never used again: whatever ends an operation early cuts it, so nothing of an old generation can
// be taken for something of a new one. Who provides the connections has proven that the peer
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

// One thread at a time, but for cut(); where it is duplex, one that reads and one that writes.
class Link {
 public:
  enum class State : std::uint8_t {
    kMoved,         // At least one byte.
    kWantsToRead,   // Nothing moved: try again once the descriptor can be read.
    kWantsToWrite,  // The same, once it can be written to.
    kOver,          // Nothing moves any more: the peer or its host is gone, or somebody has cut it.
  };
  struct Moved {
    State state = State::kMoved;
    std::size_t bytes = 0;
  };

  virtual ~Link() = default;  // Cuts it.
  // Never wait. `bytes` and `into` are not empty.
  [[nodiscard]] virtual Moved read(std::span<std::byte> into) = 0;
  // After a kWants..., the next call has to begin with the same bytes, wherever they are then.
  [[nodiscard]] virtual Moved write(std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual bool is_duplex() const = 0;
  [[nodiscard]] virtual int descriptor() const = 0;  // For poll(); the same for its whole life.
  // From here on both ends get kOver, at once. Any thread; may be called again.
  virtual void cut() = 0;
};

// What two ranks of a group want to be linked for. Both want it, one of them to connect.
struct Wanted {
  Rank peer = kNoRank;  // In the world.
  std::uint32_t channel =
      0;                  // Tells the links between the same two ranks apart; both say the same.
  bool connects = false;  // This rank connects, and the peer waits for it.
};

class Links {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  virtual ~Links() = default;
  // Makes all of them, in the order of `wanted`, for the group of that name (the same on all its
  // ranks; "" is the world's) in that generation. Errors (kWorld): `cancel`; the deadline has
  // passed (names the peers that are missing). Any thread; several groups may be formed at a time.
  [[nodiscard]] virtual Result<std::vector<std::unique_ptr<Link>>> make(
      const std::string& group, Generation generation, std::span<const Wanted> wanted,
      Deadline deadline, const std::stop_token& cancel) = 0;
};

// Which ranks share a host, and how the others reach each other.
struct Layout {
  std::vector<int> host_of;      // By rank; the numbers mean nothing else. Empty: all on one host.
  std::vector<int> domain_of;    // The same, of what fails together. Never used by a sum.
  std::shared_ptr<Links> links;  // Null only where all are on one host.
};

}  // namespace holdfast::collective
