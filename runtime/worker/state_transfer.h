// StateTransfer: a state's file from one worker to another, over a stream between the two.
//
// Each call blocks its thread. It ends with an error if the stream breaks, if nothing moves for
// Patience::limit, or soon after `cancel`, which cuts the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "io/peer_stream.h"
#include "os/fd.h"
#include "runtime/worker/peer_words.h"

namespace holdfast::runtime {

// The ranges of a file that are sent. The file must not change until then: the digest is made of
// the bytes as they are sent, so it finds only damage on the way.
struct StateFile {
  os::Fd file;
  std::vector<StateRange> ranges;  // In order; none is empty, and none overlap.
  std::uint64_t size = 0;          // The size of the whole file.
};

struct Patience {
  std::stop_token cancel;
  Duration limit = std::chrono::seconds(15);  // The longest time in which nothing moves.
};

// Sends the ranges of the file, or why there is none.
Status send_state(io::PeerStream& to, const Result<StateFile>& state, const Patience& patience);

// The memory for a state that is received.
class StateSink {
 public:
  virtual ~StateSink() = default;
  // Returns the memory for the bytes of a range. They are not verified yet when they come. Called
  // for each range in turn, when those before it have come. An error ends the transfer.
  [[nodiscard]] virtual Result<std::span<std::byte>> place(const StateHead& head,
                                                           std::size_t range) = 0;
  // Called when all ranges have come and their digest is right. Without this call, none of the
  // bytes may be used.
  [[nodiscard]] virtual Status came(const StateHead& head) = 0;
  // The file is not what is expected, and no further try would change that.
  [[nodiscard]] virtual bool has_refused() const { return false; }
};

// Asks with `hello`, and reads the state into the memory that `sink` returns.
Status receive_state(io::PeerStream& from, const PeerHello& hello, StateSink& sink,
                     const Patience& patience);

}  // namespace holdfast::runtime
