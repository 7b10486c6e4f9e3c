// What io/ alone knows of connections.
#pragma once

#include <asio/ip/tcp.hpp>
#include <memory>

#include "io/connection.h"
#include "io/loop_impl.h"
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

// A Connection over a connected, guarded socket.
std::shared_ptr<Connection> make_connection(Loop& loop, asio::ip::tcp::socket socket,
                                            ConnectionOptions options);

}  // namespace holdfast::io
