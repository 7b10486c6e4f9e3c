// PeerKind: what a process connects to its job's scheduler as.
#pragma once

#include <cstdint>

namespace holdfast::wire {

// A process proves it before it says anything else (link/handshake.h). Never renumber.
enum class PeerKind : std::uint8_t {
  kWorker = 0,    // Trains, or waits for a place; also its key-values.
  kAgent = 1,     // Starts processes.
  kObserver = 2,  // Asks how the job is, as `holdfast status` does.
};

}  // namespace holdfast::wire
