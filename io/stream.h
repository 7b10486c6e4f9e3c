// Stream: reads from and writes to a connected socket, in the clear or under TLS, and never waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tls/openssl.h"

namespace holdfast::io {

// For one thread at a time; in the clear, one may read while another writes. Does not own the
// socket, which has to be open while it is used, and not to block. Nothing raises SIGPIPE.
class Stream {
 public:
  explicit Stream(int socket) : socket_(socket) {}
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;

  enum class Outcome : std::uint8_t {
    kDone,
    kWantsToRead,   // Try again once the socket can be read.
    kWantsToWrite,  // Try again once it can be written to.
    kEnd,           // The peer says no more.
    kBroken,        // See why_broken().
  };
  struct Moved {
    Outcome outcome = Outcome::kDone;
    std::size_t bytes = 0;  // kDone: how many, at least one.
  };

  // From here on the stream is under TLS. `ssl` has not shaken hands yet. Call shake_hands() until
  // it is done.
  void put_under_tls(tls::SslPtr ssl);
  [[nodiscard]] Outcome shake_hands();
  [[nodiscard]] bool is_under_tls() const { return ssl_ != nullptr; }
  // Under TLS: whether the peer has sent anything since TLS began.
  [[nodiscard]] bool has_heard() const;

  [[nodiscard]] Moved read(std::span<char> into);
  // After a kWants..., the next call has to begin with the same bytes, wherever they are then.
  [[nodiscard]] Moved write(std::string_view bytes);
  // Tells the peer that nothing more comes.
  void end_writing();

  // Under TLS, after the handshake: bytes that only the two ends of this connection know. Errors:
  // this is TLS 1.2 without such bytes.
  [[nodiscard]] Result<std::string> binding() const;

  // What broke it; `what` names the connection. Under TLS, OpenSSL says what is wrong.
  [[nodiscard]] Error why_broken(std::string_view what) const;

 private:
  Moved outcome_of(int result);
  Moved broken_by(int error_number);
  Moved broken_at(std::span<const std::byte> bytes);

  int socket_;
  tls::SslPtr ssl_;
  int error_number_ = 0;
  std::string words_;  // Why TLS broke.
};

}  // namespace holdfast::io
