// What a process is that a connection of the job leads to. It proves that it is of this kind before
// anything else is heard of it, and may say only what is for its kind to say.
#pragma once

#include <cstdint>

namespace holdfast::wire {

// Never renumber: it is a byte of the handshake.
enum class PeerKind : std::uint8_t {
  kWorker = 0,    // A worker or a spare, also on its connection for key-values.
  kAgent = 1,     // What starts workers.
  kObserver = 2,  // It asks how the job is, and for places to be moved.
  kPeer = 3,      // A worker, to another worker. The scheduler hears nothing of it.
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
