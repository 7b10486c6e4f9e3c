// StateTransfer: a state's file from one worker to another, over a stream between the two.
//
// Blocks the calling thread. Each call ends: after an error, once nothing has moved for `patience`,
// or soon after `cancel`. It cuts the stream then.
#pragma once

#include <cstdint>
#include <functional>
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

// What is sent of a file. Its bytes must not change until they are sent: the digest shows what
// happened to them on the way, and nothing of what was wrong before.
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

// Asks with `hello`, and makes the file `path` of what comes: as large as the sender's, with its
// ranges at the same places and holes elsewhere. Only this user may read it (0600). It replaces
// what has this name. After an error there is no such file.
Status receive_state(io::PeerStream& from, const PeerHello& hello, const std::string& path,
                     const Patience& patience);

}  // namespace holdfast::runtime
