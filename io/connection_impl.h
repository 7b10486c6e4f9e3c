// What a Connection is made of; for io/ alone.
#pragma once

#include <array>
#include <asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>

#include "io/connection.h"
#include "io/loop_impl.h"
#include "wire/frame.h"

namespace holdfast::io {

// A connected, guarded (fork_guard.h) socket and its two queues. Pending operations hold it.
struct Connection::Impl : std::enable_shared_from_this<Connection::Impl> {
  Impl(Loop& owner, asio::ip::tcp::socket connected, ConnectionOptions settings);
  ~Impl();

  void start(Handlers with);
  void send(const wire::Message& message);
  void close();
  void finish(Error reason);  // Ends it now; the first reason counts.
  [[nodiscard]] bool is_open() const { return !closing && !why; }

  void read();
  void take(std::size_t bytes);
  void write();
  void say_goodbye();
  void report_end();
  void close_socket();

  Loop& loop;
  asio::ip::tcp::socket socket;
  const ConnectionOptions options;
  const std::string peer;
  Handlers handlers;
  bool started = false;
  bool closing = false;      // close() was called: discard what comes, send what is queued.
  std::optional<Error> why;  // Set once it is over.
  std::optional<std::error_code> write_error;
  Loop::TimerId linger = Loop::TimerId::kNone;

  wire::FrameReader reader;
  std::array<char, 65536> incoming;
  std::string outgoing;  // Given to the kernel; alive until it has taken all.
  std::string waiting;   // Comes next, in one piece.
};

// "host:port", an IPv6 address in brackets.
std::string name_of(const asio::ip::tcp::endpoint& endpoint);

// Closes a guarded socket. Fine for one that is closed.
void close_guarded(asio::ip::tcp::socket& socket);

// A Connection over a connected, guarded socket.
std::shared_ptr<Connection> make_connection(Loop& loop, asio::ip::tcp::socket socket,
                                            ConnectionOptions options);

}  // namespace holdfast::io
