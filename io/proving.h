// Proving: the beginning of a connection, until both ends have proven that they belong to one job.
// For io/ alone.
#pragma once

#include <asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

#include "io/connection.h"
#include "io/loop_impl.h"
#include "io/stream.h"
#include "link/handshake.h"

namespace holdfast::io {

// A connection whose ends have proven what they are.
struct Proven {
  asio::ip::tcp::socket socket;
  Stream stream;
  wire::PeerKind kind{};  // A server's: what its peer is.
  std::string peer;
};

class Proving : public std::enable_shared_from_this<Proving> {
 public:
  enum class Side : std::uint8_t { kClient, kServer };
  using Done = std::function<void(Result<Proven>)>;

  // `socket` is connected and guarded. `host`: the name that the server's certificate has to bear;
  // for a client under TLS, but not among peers.
  Proving(Loop& loop, asio::ip::tcp::socket socket, Membership membership, Side side,
          std::string host);
  ~Proving();

  // Calls `done` once, unless it is abandoned before. Lives until it is over, whether or not anyone
  // holds it.
  void begin(Done done);
  // Closes the connection; `done` is not called any more.
  void abandon();
  [[nodiscard]] Instant began() const { return began_; }
  // A server's: its peer has shown that it has the token; what may take time is TLS.
  [[nodiscard]] bool is_opened() const { return handshake_.is_opened(); }
  // Since when it has been waiting for the peer's next word: a whole one, not a letter of it.
  [[nodiscard]] Instant waits_since() const { return waits_since_; }
  // Whether the peer has sent something that was not read yet.
  [[nodiscard]] bool has_spoken();
  // Whether it is over, and its socket closed or given away.
  [[nodiscard]] bool is_over() const { return over_; }
  [[nodiscard]] const std::string& peer() const { return peer_; }

 private:
  void wait(Stream::Outcome wanted);
  void go_on(bool has_come);
  // Both ends are workers.
  [[nodiscard]] bool is_among_peers() const { return membership_.kind == wire::PeerKind::kPeer; }
  [[nodiscard]] Result<tls::SslPtr> begin_tls();
  [[nodiscard]] bool shake_hands();
  [[nodiscard]] bool write();
  [[nodiscard]] bool read();
  void finish();
  void fail(Error error);
  void say_goodbye();

  Loop& loop_;
  asio::ip::tcp::socket socket_;
  const Membership membership_;
  const Side side_;
  const std::string host_;
  const std::string peer_;
  Done done_;
  Stream stream_;
  link::Handshake handshake_;
  std::string outgoing_;
  bool ends_ = false;  // It has failed: what the peer still sends is dropped.
  std::size_t ignored_ = 0;
  const Instant began_ = Loop::now();
  Instant waits_since_ = began_;
  int words_then_ = 0;
  bool over_ = false;
};

// "host:port", an IPv6 address in brackets.
std::string peer_of(const asio::ip::tcp::socket& socket);

}  // namespace holdfast::io
