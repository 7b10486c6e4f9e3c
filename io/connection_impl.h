// Functions on connections, for io/ only.
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

// Sets options of a socket: it sends at once, and a peer is lost if its host acknowledges nothing
// for `silence_limit`.
void watch_peer(int socket, Duration silence_limit);

// The common part of connect() and connect_stream().
void connect_proven(Loop& loop, const std::string& host, std::uint16_t port, Membership membership,
                    Duration timeout, std::function<void(Result<Proven>)> on_result);

// As long as `holder` lives, looks once an hour whether certificates of `watched` are about to
// expire, and warns.
void watch_expiry(Loop& loop, std::weak_ptr<void> holder, std::weak_ptr<tls::Context> watched);

// A Connection, or a PeerStream, over what both ends have proven.
std::shared_ptr<Connection> make_connection(Loop& loop, Proven proven, ConnectionOptions options);
PeerStream make_stream(Proven proven, Duration silence_limit);

}  // namespace holdfast::io
