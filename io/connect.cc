// connect() and probe().
#include <sys/socket.h>
#include <unistd.h>

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/connection_impl.h"
#include "os/errors.h"

namespace holdfast::io {
namespace {

using Tcp = asio::ip::tcp;
using Answer = std::function<void(Result<Proven>)>;

// One attempt to connect: looks the name up, tries each address, answers once.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(Loop& loop, std::string host, std::uint16_t port, Membership membership, Answer answer)
      : loop_(loop),
        host_(std::move(host)),
        port_(port),
        membership_(std::move(membership)),
        answer_(std::move(answer)),
        resolver_(loop.impl().context),
        socket_(loop.impl().context) {}
  ~Attempt() { close_guarded(socket_); }

  void begin(Duration timeout) {
    timer_ = loop_.after(timeout, [self = shared_from_this()] {
      self->fail(Error{
          Blame::kWorld,
          cat("cannot connect to ", self->where(), ": ",
              self->proving_
                  ? cat("whoever listens there does not answer as a ", self->wanted(),
                        " does, or is stopped")
                  : std::string("no answer in time; check that it runs there and that no firewall "
                                "lies between"))});
    });
    asio::error_code not_numeric;
    const auto address = asio::ip::make_address(host_, not_numeric);
    if (!not_numeric) {
      endpoints_.emplace_back(address, port_);
      return try_next();
    }
    resolver_.async_resolve(host_, std::to_string(port_), Tcp::resolver::numeric_service,
                            [self = shared_from_this()](const std::error_code& error,
                                                        const Tcp::resolver::results_type& found) {
                              self->take_addresses(error, found);
                            });
  }

 private:
  [[nodiscard]] std::string where() const { return host_and_port(host_, port_); }
  [[nodiscard]] const char* wanted() const {
    return membership_.kind == wire::PeerKind::kPeer ? "worker" : "scheduler";
  }

  void take_addresses(const std::error_code& error, const Tcp::resolver::results_type& found) {
    if (!answer_) return;
    if (error) {
      return fail(Error{Blame::kUser, cat("cannot connect to ", where(), ": the name ", host_,
                                          " is not known here (", error.message(), "); check it")});
    }
    for (const auto& entry : found) endpoints_.push_back(entry.endpoint());
    try_next();
  }

  void try_next() {
    close_guarded(socket_);
    if (next_ == endpoints_.size()) {
      if (refusal_) return fail(*refusal_);
      return fail(os::system_error(cat("cannot connect to ", where()), last_error_));
    }
    const auto& endpoint = endpoints_.at(next_++);
    const int fd = guarded_socket(endpoint.protocol().family());
    if (fd < 0) return next_after(std::error_code(errno, std::system_category()));
    asio::error_code error;
    socket_.assign(endpoint.protocol(), fd, error);
    if (error) {
      discard(fd);
      return next_after(error);
    }
    socket_.async_connect(endpoint, [self = shared_from_this()](const std::error_code& result) {
      if (!self->answer_) return;
      if (result) return self->next_after(result);
      self->finish();
    });
  }

  void next_after(const std::error_code& error) {
    last_error_ = error;
    try_next_later();
  }

  // The process that listens there and this one do not take each other for members of one job.
  void next_after(const Error& refusal) {
    refusal_ = Error{refusal.blame, cat("cannot connect to ", where(), ": ", refusal.what)};
    proving_.reset();
    try_next_later();
  }

  void try_next_later() {
    loop_.post([self = shared_from_this()] {
      if (self->answer_) self->try_next();
    });
  }

  void finish() {
    // If nobody listens on an ephemeral port of this host, a socket may get that very port and
    // connect to itself.
    asio::error_code error;
    if (socket_.local_endpoint(error) == socket_.remote_endpoint(error)) {
      return next_after(std::error_code(ECONNREFUSED, std::system_category()));
    }
    proving_ = std::make_shared<Proving>(loop_, std::move(socket_), membership_,
                                         Proving::Side::kClient, host_);
    // Holds this attempt weakly: the timer holds it, and with a second holder neither would go with
    // the loop.
    proving_->begin([weak = weak_from_this()](Result<Proven> proven) {
      const auto self = weak.lock();
      if (!self || !self->answer_) return;
      if (!proven) return self->next_after(proven.error());
      self->loop_.cancel(self->timer_);
      std::exchange(self->answer_, nullptr)(std::move(proven));
    });
  }

  void fail(Error error) {
    if (!answer_) return;
    loop_.cancel(timer_);
    resolver_.cancel();
    close_guarded(socket_);
    if (proving_) proving_->abandon();
    std::exchange(answer_, nullptr)(std::move(error));
  }

  Loop& loop_;
  const std::string host_;
  const std::uint16_t port_;
  const Membership membership_;
  Answer answer_;  // Empty once it was called.
  Tcp::resolver resolver_;
  Tcp::socket socket_;
  std::shared_ptr<Proving> proving_;
  Loop::TimerId timer_ = Loop::TimerId::kNone;
  std::vector<Tcp::endpoint> endpoints_;
  std::size_t next_ = 0;
  std::error_code last_error_;
  std::optional<Error> refusal_;
};

// One connection that is given up as soon as it is made.
struct Glance {
  explicit Glance(Loop& loop) : socket(loop.impl().context) {}
  ~Glance() { close_guarded(socket); }
  Tcp::socket socket;
};

}  // namespace

int guarded_socket(int family) {
  const auto held = os::hold_forks();
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (fd >= 0) os::guard_from_children(fd);
  return fd;
}

void discard(int guarded_socket) {
  const auto held = os::hold_forks();
  os::unguard(guarded_socket);
  ::close(guarded_socket);
}

void connect_proven(Loop& loop, const std::string& host, std::uint16_t port, Membership membership,
                    Duration timeout, std::function<void(Result<Proven>)> on_result) {
  loop.impl().check_thread();
  const auto attempt =
      std::make_shared<Attempt>(loop, host, port, std::move(membership), std::move(on_result));
  loop.post([attempt, timeout] { attempt->begin(timeout); });
}

void connect(Loop& loop, const std::string& host, std::uint16_t port, Membership membership,
             Duration timeout, std::function<void(Result<std::shared_ptr<Connection>>)> on_result,
             ConnectionOptions options) {
  // Weak: the attempt holds the membership, and with it the context.
  std::weak_ptr<tls::Context> watched = membership.tls;
  connect_proven(loop, host, port, std::move(membership), timeout,
                 [&loop, watched = std::move(watched), on_result = std::move(on_result),
                  options](Result<Proven> proven) {
                   if (!proven) return on_result(proven.error());
                   auto made = make_connection(loop, *std::move(proven), options);
                   watch_expiry(loop, made, watched);
                   on_result(std::move(made));
                 });
}

void probe(Loop& loop, const std::string& host, std::uint16_t port, Duration timeout,
           std::function<void()> on_refused) {
  asio::error_code error;
  const Tcp::endpoint to(asio::ip::make_address(host, error), port);
  const int fd = error ? -1 : guarded_socket(to.protocol().family());
  if (fd < 0) return;
  const auto glance = std::make_shared<Glance>(loop);
  glance->socket.assign(to.protocol(), fd, error);
  if (error) return discard(fd);
  const auto timer = loop.after(timeout, [glance] { close_guarded(glance->socket); });
  glance->socket.async_connect(
      to, [&loop, timer, on_refused = std::move(on_refused)](const std::error_code& result) {
        loop.cancel(timer);
        if (result == asio::error::connection_refused) on_refused();
      });
}

}  // namespace holdfast::io
