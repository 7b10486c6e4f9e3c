#include "io/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/write.hpp>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "io/connection_impl.h"
#include "os/errors.h"
#include "os/fork_guard.h"

namespace holdfast::io {
namespace {

using Tcp = asio::ip::tcp;

constexpr Duration kLinger = std::chrono::seconds(2);
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;  // Of a queue that is empty.

void set_option(int fd, int level, int name, int value) {
  // A kernel that lacks one of these still serves.
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

void set_options(int fd, const ConnectionOptions& options) {
  using std::chrono::duration_cast;
  const auto limit = duration_cast<std::chrono::milliseconds>(options.silence_limit).count();
  const auto probe_seconds = static_cast<int>(std::max<std::int64_t>(1, limit / 3000));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit));
}

std::string peer_of(const Tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  return error ? "a peer that is gone" : name_of(endpoint);
}

}  // namespace

std::string name_of(const Tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? cat('[', address, "]:", endpoint.port())
                                    : cat(address, ':', endpoint.port());
}

void close_guarded(Tcp::socket& socket) {
  if (!socket.is_open()) return;
  const auto held = os::hold_forks();
  os::unguard(socket.native_handle());
  asio::error_code ignored;
  socket.close(ignored);
}

std::shared_ptr<Connection> make_connection(Loop& loop, Tcp::socket socket,
                                            ConnectionOptions options) {
  return std::make_shared<Connection>(
      std::make_shared<Connection::Impl>(loop, std::move(socket), options));
}

Connection::Impl::Impl(Loop& owner, Tcp::socket connected, ConnectionOptions settings)
    : loop(owner), socket(std::move(connected)), options(settings), peer(peer_of(socket)) {
  set_options(socket.native_handle(), options);
}

Connection::Impl::~Impl() {
  close_guarded(socket);
}

void Connection::Impl::start(Handlers with) {
  HF_ASSERT(!started);
  started = true;
  handlers = std::move(with);
  if (why) {
    report_end();
  } else {
    read();
  }
}

void Connection::Impl::read() {
  socket.async_read_some(
      asio::buffer(incoming),
      [self = shared_from_this()](const std::error_code& error, std::size_t bytes) {
        if (self->why) return;
        if (!error) return self->take(bytes);
        if (error == asio::error::eof && !self->write_error) {
          return self->finish(Error{Blame::kWorld, cat(self->peer, " closed the connection")});
        }
        self->finish(os::system_error(cat("the connection to ", self->peer, " broke"),
                                      self->write_error.value_or(error)));
      });
}

void Connection::Impl::take(std::size_t bytes) {
  if (!closing) reader.feed({incoming.data(), bytes});
  while (is_open()) {
    auto next = reader.next();
    if (!next) return finish(Error{Blame::kPeer, cat(peer, ": ", next.error().what)});
    if (!next->has_value()) break;
    handlers.on_message(std::move(**next));
  }
  if (!why) read();
}

void Connection::Impl::send(const wire::Message& message) {
  if (!is_open() || write_error) return;
  waiting += wire::frame(message);
  if (outgoing.size() + waiting.size() > options.queue_limit_bytes) {
    return finish(Error{Blame::kWorld,
                        cat(peer, " takes no data: ", outgoing.size() + waiting.size(),
                            " bytes wait to be sent, the limit is ", options.queue_limit_bytes)});
  }
  if (outgoing.empty()) write();
}

void Connection::Impl::write() {
  if (write_error) waiting.clear();
  if (waiting.empty()) {
    if (closing) return say_goodbye();
    if (handlers.on_drained) handlers.on_drained();
    return;
  }
  std::swap(outgoing, waiting);
  asio::async_write(socket, asio::buffer(outgoing),
                    [self = shared_from_this()](const std::error_code& error, std::size_t) {
                      if (self->why) return;
                      self->outgoing.clear();
                      if (self->outgoing.capacity() > kKeptBytes) self->outgoing = {};
                      // This is not the end yet. The peer's last words can still be read; then
                      // reading fails too.
                      if (error) self->write_error = error;
                      self->write();
                    });
}

void Connection::Impl::close() {
  if (!is_open()) return;
  if (!started)
    return finish(Error{Blame::kWorld, cat("this process closed the connection to ", peer)});
  closing = true;
  linger = loop.after(kLinger, [self = shared_from_this()] {
    self->finish(Error{Blame::kWorld, cat("this process closed the connection to ", self->peer)});
  });
  if (outgoing.empty()) write();
}

// If a socket is closed with unread bytes, the connection is reset and the peer may lose our last
// bytes. So only our sending side is closed here, and read() goes on until the peer closes its own.
void Connection::Impl::say_goodbye() {
  asio::error_code ignored;
  socket.shutdown(Tcp::socket::shutdown_send, ignored);
}

void Connection::Impl::finish(Error reason) {
  if (why) return;
  why = std::move(reason);
  if (linger != Loop::TimerId::kNone) loop.cancel(linger);
  close_guarded(socket);
  // `outgoing` stays: the kernel's call may still be looking at it until its callback has run.
  waiting.clear();
  if (started) report_end();
}

void Connection::Impl::report_end() {
  loop.post([self = shared_from_this()] {
    const auto on_closed = std::move(self->handlers.on_closed);
    self->handlers = {};  // They may hold the Connection, which would then never be freed.
    if (on_closed) on_closed(*self->why);
  });
}

Connection::Connection(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Connection::~Connection() = default;

void Connection::start(Handlers handlers) {
  impl_->loop.impl().check_thread();
  impl_->start(std::move(handlers));
}
void Connection::send(const wire::Message& message) {
  impl_->loop.impl().check_thread();
  impl_->send(message);
}
void Connection::close() {
  impl_->loop.impl().check_thread();
  impl_->close();
}
void Connection::abort(Error why) {
  impl_->loop.impl().check_thread();
  impl_->finish(std::move(why));
}
bool Connection::is_open() const {
  return impl_->is_open();
}
const std::string& Connection::peer() const {
  return impl_->peer;
}
std::size_t Connection::queued_bytes() const {
  return impl_->outgoing.size() + impl_->waiting.size();
}
int Connection::descriptor() const {
  return impl_->socket.is_open() ? const_cast<Impl&>(*impl_).socket.native_handle() : -1;
}

}  // namespace holdfast::io
