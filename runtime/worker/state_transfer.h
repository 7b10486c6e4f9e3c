// StateTransfer: a state's file from one worker to another, over a stream between the two.
//
// Blocks the calling thread. Each call ends: after an error, once nothing has moved for `patience`,
// or soon after `cancel`. It cuts the stream then.
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

// What is sent of a file. Its bytes must not change until they are sent: the digest is made of what
// is sent, so it finds damage on the way only.
struct StateFile {
  os::Fd file;
  std::vector<StateRange> ranges;  // In order, none empty, none over another.
  std::uint64_t size = 0;          // Of the whole file.
};

struct Patience {
  std::stop_token cancel;
  Duration limit = std::chrono::seconds(15);  // In which something has to move.
};

// The file, or why there is none.
Status send_state(io::PeerStream& to, const Result<StateFile>& state, const Patience& patience);

// Where what comes of a state is to lie.
class StateSink {
 public:
  virtual ~StateSink() = default;
  // Memory for the bytes of a range, which nobody believes yet. Each range is asked for in turn,
  // when those before it have come. An error ends the transfer.
  [[nodiscard]] virtual Result<std::span<std::byte>> place(const StateHead& head,
                                                           std::size_t range) = 0;
  // All have come, and their digest is right. Without this call nothing has come.
  [[nodiscard]] virtual Status came(const StateHead& head) = 0;
};

// Asks with `hello`, and gives `sink` what comes. Each byte is digested where it is to lie.
Status receive_state(io::PeerStream& from, const PeerHello& hello, StateSink& sink,
                     const Patience& patience);

}  // namespace holdfast::runtime
