// The kind of the process at the other end of a connection. It proves its kind in the handshake,
// before any message, and may send only the messages of its kind.
#pragma once

#include <cstdint>

namespace holdfast::wire {

// Never renumber: it is a byte of the handshake.
enum class PeerKind : std::uint8_t {
  kWorker = 0,    // A worker or a spare, also on its connection for key-values.
  kAgent = 1,     // What starts workers.
  kObserver = 2,  // A command that asks for the job's status, or to move places.
  kPeer = 3,      // A worker that connects to another worker; never to the scheduler.
};
[[nodiscard]] constexpr bool is_known(PeerKind kind) {
  return kind <= PeerKind::kPeer;
}
[[nodiscard]] constexpr const char* name(PeerKind kind) {
  switch (kind) {
    case PeerKind::kWorker:
      return "worker";
    case PeerKind::kAgent:
      return "agent";
    case PeerKind::kObserver:
      return "observer";
    case PeerKind::kPeer:
      return "peer";
  }
  return "?";
}

}  // namespace holdfast::wire
