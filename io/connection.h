// Connection: messages to and from one process of the same job, over TCP or TLS; listen() and
// connect() make them. Both ends have proven that they belong to the job before there is one.
//
// Everything here belongs to the loop's thread: call it from callbacks of the loop, or while no
// thread runs the loop. Sockets are CLOEXEC and TCP_NODELAY, are watched by keepalive and
// TCP_USER_TIMEOUT, and never raise SIGPIPE. A forked child loses them (os/fork_guard.h), so it can
// not keep a dead parent's connections open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "io/loop.h"
#include "link/token.h"
#include "wire/messages.h"
#include "wire/peer.h"

namespace holdfast::tls {
class Context;
}

namespace holdfast::io {

// What a process needs to prove to its peers that it belongs to a job (link/handshake.h).
struct Membership {
  std::string job;                                // The job's name.
  link::Token token;                              // Only the job's processes know it.
  wire::PeerKind kind = wire::PeerKind::kWorker;  // What this process connects as.
  std::shared_ptr<tls::Context> tls = nullptr;    // Null: in the clear, or there is a problem.
  // Why the job's TLS can not be used here, in a sentence. Both ends hear it, and none goes on.
  std::string tls_problem = {};

  [[nodiscard]] bool in_the_clear() const { return tls == nullptr && tls_problem.empty(); }
};

struct ConnectionOptions {
  // A peer is lost if its host acknowledges nothing for this long (TCP_USER_TIMEOUT, and keepalive
  // probes while nothing is sent). A stopped process is not lost, because its kernel acknowledges.
  Duration silence_limit = std::chrono::seconds(15);
  // If more bytes than this wait to be sent, the connection is closed with an error.
  std::size_t queue_limit_bytes = std::size_t{64} << 20;
};

// Lives until it is closed and on_closed has run, whether or not anyone holds it.
class Connection {
 public:
  struct Handlers {
    std::function<void(wire::Message)> on_message;
    // The last call, exactly once, also after close(). The blame is kPeer if the peer sent
    // nonsense.
    std::function<void(Error why)> on_closed;
    // The peer has sent bytes that are no message, and they are undamaged: it is of another
    // version, or has a fault. `why` names the peer and says what to do. Nothing more is read;
    // messages still go out, until close(). If this handler is empty, the connection is closed.
    std::function<void(const Error& why)> on_unreadable = nullptr;
    // Called when the kernel has taken all that was queued. May be empty.
    std::function<void()> on_drained = nullptr;
  };

  virtual ~Connection() = default;

  // Begins to read. Call it first, and once. Before, nothing is read or reported.
  virtual void start(Handlers handlers) = 0;

  // Queues a message; drops it after close() or when the peer is gone.
  virtual void send(const wire::Message& message) = 0;

  // Reads no more, so on_message is not called again. Sends what is queued, for at most two
  // seconds. Then the socket is closed and on_closed runs.
  virtual void close() = 0;
  // Closes at once, and sends nothing more. on_closed gets the reason.
  virtual void abort(Error why) = 0;

  [[nodiscard]] virtual bool is_open() const = 0;             // Neither side has closed it so far.
  [[nodiscard]] virtual const std::string& peer() const = 0;  // "host:port", numeric.
  [[nodiscard]] virtual std::size_t queued_bytes() const = 0;
  [[nodiscard]] virtual int descriptor() = 0;  // For getsockopt(); -1 once closed.
};

class PeerStream;

// The place where a peer that has connected waits until it has proven that it belongs to the job.
struct Door {
  std::size_t most = 512;  // Connections; but at most a quarter of this process's descriptors.
  Duration patience = std::chrono::seconds(5);
};

struct Listening {
  Membership membership;
  // Gets each connection and the kind that its peer has proven; has to start it.
  std::function<void(std::shared_ptr<Connection>, wire::PeerKind)> on_accept;
  // A peer has failed to prove that it belongs to the job. `why` holds nothing that the peer has
  // sent but a certificate's name. May be empty.
  std::function<void(const std::string& peer, const std::string& why)> on_refused = nullptr;
  // If set, called in place of on_accept: gets the bare streams (io/peer_stream.h) of the peers
  // that have proven to be of the kind in `membership`. All other peers are refused.
  std::function<void(PeerStream)> on_stream = nullptr;
  Door door = {};
  ConnectionOptions connection = {};
};

// Occupies a port until it is destroyed.
class Listener {
 public:
  virtual ~Listener() = default;
  // Begins to accept connections. A later call replaces `how`.
  virtual void serve(Listening how) = 0;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

// Listens on host:port. Port 0 is any free port (see Listener::port). The host is a numeric address
// or a name, which is looked up at once. Errors name host:port: the port is taken, or the address
// is not this host's.
Result<std::unique_ptr<Listener>> listen(Loop& loop, const std::string& host, std::uint16_t port);

// Connects to host:port, tries every address of the name in turn, and proves the membership. Calls
// `on_result` exactly once within `timeout`: with a connection, which has to be started, or with an
// error. The blame is not the world's if one end refuses the other.
void connect(Loop& loop, const std::string& host, std::uint16_t port, Membership membership,
             Duration timeout, std::function<void(Result<std::shared_ptr<Connection>>)> on_result,
             ConnectionOptions options = {});

// Calls `on_refused`, once, if this host's kernel refuses connections at that port: nobody listens
// there. Where somebody does, or nothing answers within `timeout`, nothing is called. The host is a
// numeric address.
void probe(Loop& loop, const std::string& host, std::uint16_t port, Duration timeout,
           std::function<void()> on_refused);

}  // namespace holdfast::io
