// Connection: messages to and from one peer over TCP; listen() and connect() make them.
//
// Everything here belongs to the loop's thread: call it from callbacks of the loop, or while no
// thread runs the loop. Sockets are CLOEXEC, TCP_NODELAY, and watched by keepalive and
// TCP_USER_TIMEOUT; they never raise SIGPIPE; a fork()ed child loses them (os/fork_guard.h), so
// that it can not keep a dead parent's connections open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "io/loop.h"
#include "wire/messages.h"

namespace holdfast::io {

struct ConnectionOptions {
  // A peer whose host acknowledges nothing for this long is lost (TCP_USER_TIMEOUT, and keepalive
  // probes where nothing is being sent). A stopped process is not lost: its kernel acknowledges.
  Duration silence_limit = std::chrono::seconds(15);
  // More bytes than this waiting to be sent close the connection with an error.
  std::size_t queue_limit_bytes = std::size_t{64} << 20;
};

// Lives until it is closed and on_closed has run, whether or not anyone holds it.
class Connection {
 public:
  struct Handlers {
    std::function<void(wire::Message)> on_message;
    // Exactly once, last, also after close(). `why`: kPeer where the peer sent nonsense.
    std::function<void(Error why)> on_closed;
  };

  // Begins to read. Once, as the first call; until then nothing is read and nothing is reported.
  void start(Handlers handlers);

  // Queues a message. After close(), or once the peer is gone, it is dropped.
  void send(const wire::Message& message);

  // Reads no more: on_message will not be called again. What is queued is still sent, for at most
  // two seconds; then the socket is closed and on_closed runs.
  void close();
  // The same without sending what is queued, and with a reason that on_closed is given.
  void abort(Error why);

  [[nodiscard]] bool is_open() const;             // Not closed by either side so far.
  [[nodiscard]] const std::string& peer() const;  // "host:port", numeric.
  [[nodiscard]] std::size_t queued_bytes() const;
  [[nodiscard]] int descriptor() const;  // For getsockopt(); -1 once closed.

  struct Impl;  // What only io/ sees.
  explicit Connection(std::shared_ptr<Impl> impl);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

 private:
  std::shared_ptr<Impl> impl_;
};

// Accepts connections until it is destroyed.
class Listener {
 public:
  virtual ~Listener() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

// Listens on host:port (0: any free port; see Listener::port). `on_accept` is given each connection
// and starts it. Host: a name or a numeric address; a name is looked up here, at once. Errors: the
// port is taken, the address is not of this host; the sentence names host:port.
Result<std::unique_ptr<Listener>> listen(Loop& loop, const std::string& host, std::uint16_t port,
                                         std::function<void(std::shared_ptr<Connection>)> on_accept,
                                         ConnectionOptions options = {});

// Connects to host:port, trying every address of the name in turn. Within `timeout`, calls
// `on_result` exactly once: with a connection that has to be started, or with why there is none.
void connect(Loop& loop, const std::string& host, std::uint16_t port, Duration timeout,
             std::function<void(Result<std::shared_ptr<Connection>>)> on_result,
             ConnectionOptions options = {});

}  // namespace holdfast::io
