#include "io/connection.h"

#include <sys/socket.h>

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "io/connection_impl.h"
#include "wire/frame.h"

namespace holdfast::io {
namespace {

using Tcp = asio::ip::tcp;

constexpr Duration kLinger = std::chrono::seconds(2);
// Memory that a queue keeps once all is sent.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;
constexpr int kTurns = 16;  // Reads of one connection, before another one's.

// A connected, guarded socket and what waits to be sent. Pending operations hold it.
class TcpConnection final : public Connection, public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(Loop& loop, Proven proven, ConnectionOptions options)
      : loop_(loop),
        socket_(std::move(proven.socket)),
        stream_(std::move(proven.stream)),
        options_(options),
        peer_(std::move(proven.peer)) {
    watch_peer(socket_.native_handle(), options_.silence_limit);
  }
  ~TcpConnection() override { close_guarded(socket_); }

  void start(Handlers handlers) override {
    loop_.impl().check_thread();
    HF_ASSERT(!started_);
    started_ = true;
    handlers_ = std::move(handlers);
    if (why_) return report_end();
    // None of the handlers runs inside this call.
    loop_.post([self = shared_from_this()] {
      // In the clear nothing was read ahead.
      self->stream_.is_under_tls() ? self->read() : self->wait_to_read(Outcome::kWantsToRead);
    });
  }

  void send(const wire::Message& message) override {
    loop_.impl().check_thread();
    if (!is_open() || write_error_) return;
    const bool idle = outgoing_.empty();
    outgoing_ += wire::frame(message);
    if (idle) write();
    if (queued_bytes() <= options_.queue_limit_bytes) return;
    finish(Error{Blame::kWorld,
                 cat(peer_, " takes no data: ", queued_bytes(),
                     " bytes wait to be sent, the limit is ", options_.queue_limit_bytes)});
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
    if (outgoing_.empty()) stream_.end_writing();
  }

  void abort(Error why) override {
    loop_.impl().check_thread();
    finish(std::move(why));
  }

  [[nodiscard]] bool is_open() const override { return !closing_ && !why_; }
  [[nodiscard]] const std::string& peer() const override { return peer_; }
  [[nodiscard]] std::size_t queued_bytes() const override { return outgoing_.size() - sent_; }
  [[nodiscard]] int descriptor() override {
    return socket_.is_open() ? socket_.native_handle() : -1;
  }

 private:
  using Outcome = Stream::Outcome;

  // One buffer for all connections of a thread: what is read is taken at once.
  static std::span<char> incoming() {
    thread_local std::array<char, 65536> bytes;
    return bytes;
  }

  void read() {
    if (why_) return;
    if (!take_messages()) return;
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto [outcome, bytes] = stream_.read(incoming());
      if (outcome == Outcome::kDone) {
        if (!closing_ && !is_deaf_) reader_.feed({incoming().data(), bytes});
        if (!take_messages()) return;
        // All that had come is read, so another try would bring nothing.
        const bool is_all = bytes < incoming().size() && !stream_.is_under_tls();
        if (is_all && !write_wants_to_read_) return wait_to_read(Outcome::kWantsToRead);
        continue;
      }
      if (write_wants_to_read_) {
        write_on();
        if (why_) return;
      }
      return ended(outcome) ? read_no_more(outcome) : wait_to_read(outcome);
    }
    // Other connections have their turn. Posted, because under TLS the socket does not tell of
    // bytes that were read already.
    loop_.post([self = shared_from_this()] { self->read(); });
  }

  static bool ended(Outcome outcome) {
    return outcome == Outcome::kEnd || outcome == Outcome::kBroken;
  }

  void wait_to_read(Outcome wanted) {
    const auto what =
        wanted == Outcome::kWantsToWrite ? Tcp::socket::wait_write : Tcp::socket::wait_read;
    socket_.async_wait(what, [self = shared_from_this()](const std::error_code&) { self->read(); });
  }

  void read_no_more(Outcome outcome) {
    if (write_error_) return finish(*write_error_);
    if (outcome == Outcome::kBroken) return finish(why_broken());
    finish(Error{Blame::kWorld, cat(peer_, " closed the connection")});
  }

  [[nodiscard]] Error why_broken() const {
    return stream_.why_broken(cat("the connection to ", peer_));
  }

  // Hands out the messages that are complete. False: the connection is over.
  bool take_messages() {
    while (is_open() && !is_deaf_) {
      auto next = reader_.next();
      if (!next) {
        const Error why{Blame::kPeer, cat(peer_, ": ", next.error().what)};
        is_deaf_ = next.error().blame == Blame::kPeer && handlers_.on_unreadable;
        if (!is_deaf_) {
          finish(why);
          return false;
        }
        handlers_.on_unreadable(why);
        break;
      }
      if (!next->has_value()) break;
      handlers_.on_message(std::move(**next));
    }
    return !why_;
  }

  void write() {
    write_wants_to_read_ = false;
    while (sent_ < outgoing_.size()) {
      const auto [outcome, bytes] = stream_.write(std::string_view(outgoing_).substr(sent_));
      if (outcome == Outcome::kDone) {
        sent_ += bytes;
      } else if (outcome == Outcome::kWantsToWrite) {
        return wait_to_write();
      } else if (outcome == Outcome::kWantsToRead) {
        write_wants_to_read_ = true;
        return;
      } else {
        // The connection does not end yet: the peer's last messages can still be read. Then reading
        // ends, too.
        write_error_ = why_broken();
        break;
      }
    }
    sent_ = 0;
    outgoing_.clear();
    if (outgoing_.capacity() > kKeptBytes) outgoing_ = std::string();  // {} would keep its room.
    if (closing_) stream_.end_writing();
  }

  // Goes on with what could not be written before.
  void write_on() {
    write();
    const auto& drained = handlers_.on_drained;
    if (outgoing_.empty() && is_open() && drained) drained();
  }

  void wait_to_write() {
    // Only when half of the queue is sent, so that bytes are moved seldom.
    if (sent_ > kKeptBytes && sent_ >= outgoing_.size() / 2) {
      outgoing_.erase(0, std::exchange(sent_, 0));
    }
    socket_.async_wait(Tcp::socket::wait_write,
                       [self = shared_from_this()](const std::error_code&) {
                         if (!self->why_) self->write_on();
                       });
  }

  // Ends it now; the first reason counts.
  void finish(Error reason) {
    if (why_) return;
    why_ = std::move(reason);
    if (linger_ != Loop::TimerId::kNone) loop_.cancel(linger_);
    close_guarded(socket_);
    outgoing_.clear();
    sent_ = 0;
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
  Stream stream_;
  const ConnectionOptions options_;
  const std::string peer_;
  Handlers handlers_;
  bool started_ = false;
  bool closing_ = false;      // close() was called: discard what comes, send what is queued.
  bool is_deaf_ = false;      // An unreadable message has come: discard all that follows.
  std::optional<Error> why_;  // Set once it is over.
  std::optional<Error> write_error_;
  bool write_wants_to_read_ = false;  // TLS has to hear something before it can say more.
  Loop::TimerId linger_ = Loop::TimerId::kNone;

  wire::FrameReader reader_;
  std::string outgoing_;
  std::size_t sent_ = 0;  // How many of its bytes are sent.
};

}  // namespace

std::shared_ptr<Connection> make_connection(Loop& loop, Proven proven, ConnectionOptions options) {
  return std::make_shared<TcpConnection>(loop, std::move(proven), options);
}

}  // namespace holdfast::io
