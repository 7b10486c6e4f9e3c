// listen() and connect(). They make the sockets themselves, because asio would make them without
// CLOEXEC and outside the fork guard.
#include <sys/socket.h>

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/connection_impl.h"
#include "os/errors.h"

namespace holdfast::io {
namespace {

using Tcp = asio::ip::tcp;
using Answer = std::function<void(Result<std::shared_ptr<Connection>>)>;

// How long to wait when accept() fails because this process has no free descriptor.
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);

int guarded_socket(int family) {
  const auto held = os::hold_forks();
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (fd >= 0) os::guard_from_children(fd);
  return fd;
}

void discard(int fd) {
  const auto held = os::hold_forks();
  os::unguard(fd);
  ::close(fd);
}

class ListenerImpl : public Listener {
 public:
  // A listening, guarded socket.
  struct Socket : std::enable_shared_from_this<Socket> {
    Socket(Loop& owner, Tcp::acceptor listening, ConnectionOptions settings)
        : loop(owner), acceptor(std::move(listening)), options(settings) {}
    ~Socket() { close_guarded(acceptor); }

    void wait() {
      acceptor.async_wait(Tcp::acceptor::wait_read,
                          [self = shared_from_this()](const std::error_code& error) {
                            if (!error) self->accept_all();
                          });
    }

    void accept_all() {
      while (acceptor.is_open()) {
        const int fd = accept_one();
        if (fd >= 0) {
          Tcp::socket socket(loop.impl().context, protocol, fd);
          on_accept(make_connection(loop, std::move(socket), options));
        } else if (errno == EAGAIN) {
          return wait();
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          loop.after(kPauseWithoutDescriptors, [weak = weak_from_this()] {
            if (const auto self = weak.lock()) self->accept_all();
          });
          return;
        }  // Otherwise that connection failed before it was accepted: take the next.
      }
    }

    int accept_one() {
      const auto held = os::hold_forks();
      const int fd =
          ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) os::guard_from_children(fd);
      return fd;
    }

    Loop& loop;
    Tcp::acceptor acceptor;
    Tcp protocol = Tcp::v4();
    const ConnectionOptions options;
    std::function<void(std::shared_ptr<Connection>)> on_accept;
  };

  explicit ListenerImpl(std::shared_ptr<Socket> socket) : socket_(std::move(socket)) {}
  ~ListenerImpl() override { close_guarded(socket_->acceptor); }

  [[nodiscard]] std::uint16_t port() const override {
    asio::error_code error;
    return socket_->acceptor.local_endpoint(error).port();
  }

 private:
  std::shared_ptr<Socket> socket_;
};

Error cannot_listen(const std::string& where, int error_number) {
  if (error_number == EADDRINUSE) {
    return Error{Blame::kUser,
                 cat("cannot listen on ", where,
                     ": another process has this port; choose another one, or end that "
                     "process (`ss -ltnp` names it)")};
  }
  if (error_number == EADDRNOTAVAIL) {
    return Error{Blame::kUser,
                 cat("cannot listen on ", where,
                     ": this host has no such address; choose one that `ip address` lists")};
  }
  return os::system_error(cat("cannot listen on ", where), error_number);
}

// A bound, listening, guarded socket, or the negative error number.
int listening_socket(const Tcp::endpoint& endpoint) {
  const int fd = guarded_socket(endpoint.protocol().family());
  if (fd < 0) return -errno;
  const int yes = 1;
  (void)::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  const auto size = static_cast<socklen_t>(endpoint.size());
  if (::bind(fd, endpoint.data(), size) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error_number = errno;
  discard(fd);
  return -error_number;
}

// One attempt to connect: looks the name up, tries each address, answers once.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(Loop& loop, std::string host, std::uint16_t port, Answer answer,
          ConnectionOptions options)
      : loop_(loop),
        host_(std::move(host)),
        port_(port),
        answer_(std::move(answer)),
        options_(options),
        resolver_(loop.impl().context),
        socket_(loop.impl().context) {}
  ~Attempt() { close_guarded(socket_); }

  void begin(Duration timeout) {
    timer_ = loop_.after(timeout, [self = shared_from_this()] {
      self->fail(
          Error{Blame::kWorld, cat("cannot connect to ", self->where(),
                                   ": no answer in time; check that it runs there and that no "
                                   "firewall lies between")});
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
  [[nodiscard]] std::string where() const { return cat(host_, ':', port_); }

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
    loop_.cancel(timer_);
    std::exchange(answer_, nullptr)(make_connection(loop_, std::move(socket_), options_));
  }

  void fail(Error error) {
    if (!answer_) return;
    loop_.cancel(timer_);
    resolver_.cancel();
    close_guarded(socket_);
    std::exchange(answer_, nullptr)(std::move(error));
  }

  Loop& loop_;
  const std::string host_;
  const std::uint16_t port_;
  Answer answer_;  // Empty once it was called.
  const ConnectionOptions options_;
  Tcp::resolver resolver_;
  Tcp::socket socket_;
  Loop::TimerId timer_ = Loop::TimerId::kNone;
  std::vector<Tcp::endpoint> endpoints_;
  std::size_t next_ = 0;
  std::error_code last_error_;
};

}  // namespace

Result<std::unique_ptr<Listener>> listen(Loop& loop, const std::string& host, std::uint16_t port,
                                         std::function<void(std::shared_ptr<Connection>)> on_accept,
                                         ConnectionOptions options) {
  loop.impl().check_thread();
  const std::string where = cat(host, ':', port);
  asio::error_code unknown;
  const auto found = Tcp::resolver(loop.impl().context)
                         .resolve(host, std::to_string(port),
                                  Tcp::resolver::passive | Tcp::resolver::numeric_service, unknown);
  if (unknown) {
    const bool passes = unknown.category() != asio::error::get_netdb_category() ||
                        unknown == asio::error::host_not_found_try_again;
    return Error{passes ? Blame::kWorld : Blame::kUser,
                 cat("cannot listen on ", where, ": the name ", host, " is not known here (",
                     unknown.message(), "); check it")};
  }
  int fd = -EADDRNOTAVAIL;
  Tcp protocol = Tcp::v4();
  for (auto address = found.begin(); address != found.end() && fd < 0; ++address) {
    protocol = address->endpoint().protocol();
    fd = listening_socket(address->endpoint());
  }
  if (fd < 0) return cannot_listen(where, -fd);
  auto socket = std::make_shared<ListenerImpl::Socket>(
      loop, Tcp::acceptor(loop.impl().context, protocol, fd), options);
  socket->protocol = protocol;
  socket->on_accept = std::move(on_accept);
  socket->wait();
  return std::unique_ptr<Listener>(std::make_unique<ListenerImpl>(std::move(socket)));
}

void connect(Loop& loop, const std::string& host, std::uint16_t port, Duration timeout,
             std::function<void(Result<std::shared_ptr<Connection>>)> on_result,
             ConnectionOptions options) {
  loop.impl().check_thread();
  const auto attempt = std::make_shared<Attempt>(loop, host, port, std::move(on_result), options);
  loop.post([attempt, timeout] { attempt->begin(timeout); });
}

}  // namespace holdfast::io
