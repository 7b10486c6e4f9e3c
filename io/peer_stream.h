// PeerStream: a connection to another process of the job, handed over as it is once both ends have
// proven that they belong to it. Listening::on_stream and connect_stream() make it.
//
// Afterwards it belongs to no loop: any thread may have it, one at a time, and waits with poll().
// It is CLOEXEC, never blocks, and is watched as a Connection is. A forked child loses it.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "io/connection.h"
#include "io/stream.h"

namespace holdfast::io {

// Closes the socket when it goes, and tells the peer nothing but that.
//
// Under TLS bytes may have come that poll() does not know of: before each poll(), read until it
// wants to read.
class PeerStream {
 public:
  PeerStream() = default;
  // `socket` is guarded (os/fork_guard.h).
  PeerStream(int socket, Stream stream, std::string peer)
      : socket_(socket), stream_(std::move(stream)), peer_(std::move(peer)) {}
  PeerStream(PeerStream&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        stream_(std::move(other.stream_)),
        peer_(std::move(other.peer_)) {}
  PeerStream& operator=(PeerStream&& other) noexcept;
  ~PeerStream();

  [[nodiscard]] Stream& stream() { return stream_; }
  [[nodiscard]] int descriptor() const { return socket_; }
  [[nodiscard]] const std::string& peer() const { return peer_; }  // "host:port", numeric.
  // Both ends read and write nothing any more. Any thread may call it, as long as this lives.
  void cut() const;

 private:
  int socket_ = -1;
  Stream stream_{-1};
  std::string peer_;
};

// As connect(). What listens there has to serve streams to those of `membership.kind`: another one
// may have accepted the proof, and closes the stream.
void connect_stream(Loop& loop, const std::string& host, std::uint16_t port, Membership membership,
                    Duration timeout, std::function<void(Result<PeerStream>)> on_result,
                    Duration silence_limit = ConnectionOptions{}.silence_limit);

// Reads the peer's first word, in the loop: as long as `missing(so far)` says that some bytes are
// missing, and not a byte more. Answers once within `patience`: with the stream and the word, or
// with the error.
struct FirstWord {
  PeerStream stream;
  std::string word;
};
void read_first_word(Loop& loop, PeerStream stream,
                     std::function<std::size_t(std::string_view)> missing, Duration patience,
                     std::function<void(Result<FirstWord>)> on_result);

}  // namespace holdfast::io
