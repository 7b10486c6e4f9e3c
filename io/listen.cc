// listen(): the listening socket, and the door to it. A peer that has not proven that it belongs to
// the job waits at the door, where there is little room. asio would make the sockets without
// CLOEXEC and outside the fork guard, so they are made here.
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/ip/tcp.hpp>
#include <cerrno>
#include <list>
#include <utility>

#include "base/text.h"
#include "io/connection_impl.h"
#include "os/errors.h"

namespace holdfast::io {
namespace {

using Tcp = asio::ip::tcp;

// How long to wait when accept() fails because this process has no free descriptor.
constexpr Duration kPauseWithoutDescriptors = std::chrono::milliseconds(100);
constexpr int kTurnsOfDoor = 64;  // New connections, before the loop goes on.
constexpr Duration kPauseAtFullDoor = std::chrono::milliseconds(5);
constexpr Duration kBetweenLooks = std::chrono::milliseconds(50);
// How long a peer at a full door may take for its next word.
constexpr Duration kMoment = std::chrono::milliseconds(100);

// A quarter of the descriptors is for strangers, at most.
std::size_t room_of(const Listening& listening) {
  std::size_t room = listening.door.most;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    room = std::min<std::size_t>(room, limit.rlim_cur / 4);
  }
  return std::max<std::size_t>(room, 1);
}

class ListenerImpl : public Listener {
 public:
  // A listening, guarded socket, and who stands at its door.
  struct Socket : std::enable_shared_from_this<Socket> {
    Socket(Loop& owner, Tcp::acceptor listening, Tcp family)
        : loop(owner), acceptor(std::move(listening)), protocol(family) {}
    ~Socket() { close_guarded(acceptor); }

    void wait() {
      acceptor.async_wait(Tcp::acceptor::wait_read,
                          [self = shared_from_this()](const std::error_code& error) {
                            if (!error) self->accept_all();
                          });
    }

    void accept_all() {
      for (int turn = 0; acceptor.is_open(); ++turn) {
        if (turn == kTurnsOfDoor) return pause({});  // Those at the door have their turn.
        if (!make_room()) return pause(kPauseAtFullDoor);
        const int fd = accept_one();
        if (fd >= 0) {
          let_stand(Tcp::socket(loop.impl().context, protocol, fd));
        } else if (errno == EAGAIN) {
          return wait();
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          if (!send_oldest_away({})) return pause(kPauseWithoutDescriptors);
        }  // Otherwise that connection failed before it was accepted: take the next.
      }
    }

    // Connections that come meanwhile wait in the kernel.
    void pause(Duration time) {
      loop.after(time, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->accept_all();
      });
    }

    int accept_one() {
      const auto held = os::hold_forks();
      const int fd =
          ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) os::guard_from_children(fd);
      return fd;
    }

    // If the door is full, sends away a peer that lets this process wait. A process of the job
    // answers within milliseconds, so silent strangers keep it out only for a moment, however many
    // they are.
    bool make_room() {
      if (at_door.size() < room) return true;
      std::erase_if(at_door, [](const auto& one) { return one->is_over(); });
      return at_door.size() < room || send_oldest_away(kMoment);
    }

    // Sends away the peers whose time is over. Runs as long as any peer stands at the door.
    void look_after() {
      std::erase_if(at_door, [&](const auto& one) {
        if (one->is_over()) return true;
        const Duration stood = Loop::now() - one->began();
        if (stood < options.door.patience) return false;
        // This process is late, and not the peer: the whole host may have paused.
        if (stood < 2 * options.door.patience && one->has_spoken()) return false;
        one->abandon();
        refused(one->peer(), "it has proven nothing in time");
        return true;
      });
      looks = !at_door.empty();
      if (!looks) return;
      loop.after(kBetweenLooks, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->look_after();
      });
    }

    void let_stand(Tcp::socket socket) {
      const auto newcomer = std::make_shared<Proving>(loop, std::move(socket), options.membership,
                                                      Proving::Side::kServer, "");
      at_door.push_back(newcomer);
      if (!looks) look_after();
      newcomer->begin([self = weak_from_this(), peer = newcomer->peer()](Result<Proven> proven) {
        const auto door = self.lock();
        if (door == nullptr || !door->acceptor.is_open()) return;
        if (!proven) return door->refused(peer, proven.error().what);
        door->let_in(*std::move(proven));
      });
    }

    void let_in(Proven proven) {
      const auto kind = proven.kind;
      if (!options.on_stream) {
        return options.on_accept(make_connection(loop, std::move(proven), options.connection),
                                 kind);
      }
      const auto wanted = options.membership.kind;
      if (kind == wanted) {
        return options.on_stream(make_stream(std::move(proven), options.connection.silence_limit));
      }
      refused(proven.peer, cat("it is of kind '", wire::name(kind), "', and only those of kind '",
                               wire::name(wanted), "' connect here"));
      close_guarded(proven.socket);
    }

    // Sends away the oldest peer for whose next word this process has waited for `waited`. A peer
    // that has opened TLS is no stranger, and stays. False: there is no such peer.
    bool send_oldest_away(Duration waited) {
      const auto now = Loop::now();
      const auto oldest = std::find_if(at_door.begin(), at_door.end(), [&](const auto& one) {
        return !one->is_over() && !one->is_opened() && now - one->waits_since() >= waited &&
               !one->has_spoken();
      });
      if (oldest == at_door.end()) return false;
      const auto gone = std::move(*oldest);
      at_door.erase(oldest);
      gone->abandon();
      refused(gone->peer(), "it has proven nothing yet, and others came");
      return true;
    }

    void refused(const std::string& peer, const std::string& why) {
      if (options.on_refused) options.on_refused(peer, why);
    }

    void close() {
      close_guarded(acceptor);
      for (const auto& one : at_door) one->abandon();
      at_door.clear();
    }

    Loop& loop;
    Tcp::acceptor acceptor;
    const Tcp protocol;
    Listening options;
    std::size_t room = 1;
    bool serves = false;
    bool looks = false;                           // A timer calls look_after().
    std::list<std::shared_ptr<Proving>> at_door;  // The oldest first.
  };

  explicit ListenerImpl(std::shared_ptr<Socket> socket) : socket_(std::move(socket)) {}
  ~ListenerImpl() override { socket_->close(); }

  void serve(Listening how) override {
    const bool begins = !std::exchange(socket_->serves, true);
    socket_->options = std::move(how);
    socket_->room = room_of(socket_->options);
    if (begins) socket_->wait();
    watch_expiry(socket_->loop, socket_, socket_->options.membership.tls);
  }

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

}  // namespace

Result<std::unique_ptr<Listener>> listen(Loop& loop, const std::string& host, std::uint16_t port) {
  loop.impl().check_thread();
  const std::string where = host_and_port(host, port);
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
  // If another process has the port at this address, the next address is not tried: clients would
  // reach that process first.
  const auto next = [&] { return fd < 0 && fd != -EADDRINUSE; };
  for (auto address = found.begin(); address != found.end() && next(); ++address) {
    protocol = address->endpoint().protocol();
    fd = listening_socket(address->endpoint());
  }
  if (fd < 0) return cannot_listen(where, -fd);
  auto socket = std::make_shared<ListenerImpl::Socket>(
      loop, Tcp::acceptor(loop.impl().context, protocol, fd), protocol);
  return std::unique_ptr<Listener>(std::make_unique<ListenerImpl>(std::move(socket)));
}

}  // namespace holdfast::io
