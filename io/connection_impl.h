// What io/ alone knows of connections.
#pragma once

#include <asio/ip/tcp.hpp>
#include <memory>

#include "io/connection.h"
#include "io/loop_impl.h"
#include "io/peer_stream.h"
#include "io/proving.h"
#include "os/fork_guard.h"

namespace holdfast::io {

// Closes a guarded (os/fork_guard.h) socket or acceptor. Fine for one that is closed.
template <class Socket>
void close_guarded(Socket& socket) {
  if (!socket.is_open()) return;
  const auto held = os::hold_forks();
  os::unguard(socket.native_handle());
  asio::error_code ignored;
  socket.close(ignored);
}

// A guarded socket with CLOEXEC that does not block, or -1 and errno.
int guarded_socket(int family);
void discard(int guarded_socket);

// Sends at once, and takes a peer for lost whose host acknowledges nothing for `silence_limit`.
void watch_peer(int socket, Duration silence_limit);

// connect() and connect_stream(), but for what is made of it.
void connect_proven(Loop& loop, const std::string& host, std::uint16_t port, Membership membership,
                    Duration timeout, std::function<void(Result<Proven>)> on_result);

// As long as `holder` lives, what its certificates say of their end is looked at.
void watch_expiry(Loop& loop, std::weak_ptr<void> holder, std::weak_ptr<tls::Context> watched);

// A Connection, or a PeerStream, over what both ends have proven.
std::shared_ptr<Connection> make_connection(Loop& loop, Proven proven, ConnectionOptions options);
PeerStream make_stream(Proven proven, Duration silence_limit);

}  // namespace holdfast::io
