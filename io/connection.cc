#include "io/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <asio/buffer.hpp>
#include <asio/error.hpp>
#include <asio/write.hpp>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "io/connection_impl.h"
#include "os/errors.h"
#include "wire/frame.h"

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

// "host:port", an IPv6 address in brackets.
std::string peer_of(const Tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "a peer that is gone";
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? cat('[', address, "]:", endpoint.port())
                                    : cat(address, ':', endpoint.port());
}

// A connected, guarded socket and its two queues. Pending operations hold it.
class TcpConnection final : public Connection, public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(Loop& loop, Tcp::socket connected, ConnectionOptions options)
      : loop_(loop), socket_(std::move(connected)), options_(options), peer_(peer_of(socket_)) {
    set_options(socket_.native_handle(), options_);
  }
  ~TcpConnection() override { close_guarded(socket_); }

  void start(Handlers handlers) override {
    loop_.impl().check_thread();
    HF_ASSERT(!started_);
    started_ = true;
    handlers_ = std::move(handlers);
    if (why_) {
      report_end();
    } else {
      read();
    }
  }

  void send(const wire::Message& message) override {
    loop_.impl().check_thread();
    if (!is_open() || write_error_) return;
    waiting_ += wire::frame(message);
    if (queued_bytes() > options_.queue_limit_bytes) {
      return finish(Error{
          Blame::kWorld, cat(peer_, " takes no data: ", queued_bytes(),
                             " bytes wait to be sent, the limit is ", options_.queue_limit_bytes)});
    }
    if (outgoing_.empty()) write();
  }

  void close() override {
    loop_.impl().check_thread();
    if (!is_open()) return;
    const auto closed = [self = shared_from_this()] {
      self->finish(
          Error{Blame::kWorld, cat("this process closed the connection to ", self->peer_)});
    };
    if (!started_) return closed();
    closing_ = true;
    linger_ = loop_.after(kLinger, closed);
    if (outgoing_.empty()) write();
  }

  void abort(Error why) override {
    loop_.impl().check_thread();
    finish(std::move(why));
  }

  [[nodiscard]] bool is_open() const override { return !closing_ && !why_; }
  [[nodiscard]] const std::string& peer() const override { return peer_; }
  [[nodiscard]] std::size_t queued_bytes() const override {
    return outgoing_.size() + waiting_.size();
  }
  [[nodiscard]] int descriptor() override {
    return socket_.is_open() ? socket_.native_handle() : -1;
  }

 private:
  void read() {
    socket_.async_read_some(
        asio::buffer(incoming_),
        [self = shared_from_this()](const std::error_code& error, std::size_t bytes) {
          if (self->why_) return;
          if (!error) return self->take(bytes);
          if (error == asio::error::eof && !self->write_error_) {
            return self->finish(Error{Blame::kWorld, cat(self->peer_, " closed the connection")});
          }
          self->finish(os::system_error(cat("the connection to ", self->peer_, " broke"),
                                        self->write_error_.value_or(error)));
        });
  }

  void take(std::size_t bytes) {
    if (!closing_) reader_.feed({incoming_.data(), bytes});
    while (is_open()) {
      auto next = reader_.next();
      if (!next) return finish(Error{Blame::kPeer, cat(peer_, ": ", next.error().what)});
      if (!next->has_value()) break;
      handlers_.on_message(std::move(**next));
    }
    if (!why_) read();
  }

  void write() {
    if (write_error_) waiting_.clear();
    if (waiting_.empty()) {
      if (closing_) return say_goodbye();
      if (handlers_.on_drained) handlers_.on_drained();
      return;
    }
    std::swap(outgoing_, waiting_);
    asio::async_write(socket_, asio::buffer(outgoing_),
                      [self = shared_from_this()](const std::error_code& error, std::size_t) {
                        if (self->why_) return;
                        self->outgoing_.clear();
                        if (self->outgoing_.capacity() > kKeptBytes) self->outgoing_ = {};
                        // This is not the end yet. The peer's last words can still be read; then
                        // reading fails too.
                        if (error) self->write_error_ = error;
                        self->write();
                      });
  }

  // If a socket is closed with unread bytes, the connection is reset and the peer may lose our last
  // bytes. So only our sending side is closed here, and read() goes on until the peer closes its
  // own.
  void say_goodbye() {
    asio::error_code ignored;
    socket_.shutdown(Tcp::socket::shutdown_send, ignored);
  }

  // Ends it now; the first reason counts.
  void finish(Error reason) {
    if (why_) return;
    why_ = std::move(reason);
    if (linger_ != Loop::TimerId::kNone) loop_.cancel(linger_);
    close_guarded(socket_);
    // `outgoing_` stays: the kernel's call may still be looking at it until its callback has run.
    waiting_.clear();
    if (started_) report_end();
  }

  void report_end() {
    loop_.post([self = shared_from_this()] {
      const auto on_closed = std::move(self->handlers_.on_closed);
      self->handlers_ = {};  // They may hold the Connection, which would then never be freed.
      if (on_closed) on_closed(*self->why_);
    });
  }

  Loop& loop_;
  Tcp::socket socket_;
  const ConnectionOptions options_;
  const std::string peer_;
  Handlers handlers_;
  bool started_ = false;
  bool closing_ = false;      // close() was called: discard what comes, send what is queued.
  std::optional<Error> why_;  // Set once it is over.
  std::optional<std::error_code> write_error_;
  Loop::TimerId linger_ = Loop::TimerId::kNone;

  wire::FrameReader reader_;
  std::array<char, 65536> incoming_;
  std::string outgoing_;  // Given to the kernel; alive until it has taken all.
  std::string waiting_;   // Comes next, in one piece.
};

}  // namespace

std::shared_ptr<Connection> make_connection(Loop& loop, Tcp::socket socket,
                                            ConnectionOptions options) {
  return std::make_shared<TcpConnection>(loop, std::move(socket), options);
}

}  // namespace holdfast::io
