#include "io/proving.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "base/text.h"
#include "io/connection_impl.h"
#include "os/errors.h"
#include "os/random_bits.h"
#include "tls/context.h"
#include "tls/handshake.h"
#include "tls/sessions.h"

namespace holdfast::io {
namespace {

// From a refusal to the end of the connection. If it were closed with unread bytes, the peer might
// lose what it was told.
constexpr Duration kGoodbye = std::chrono::seconds(1);
constexpr Duration kBetweenReminders = std::chrono::hours(1);
constexpr std::size_t kBlock = 4096;
constexpr std::size_t kMostIgnored = 65536;  // Bytes after a refusal.

// Why TLS can not begin here now; "": it can.
std::string problem_of(const Membership& membership) {
  if (!membership.tls) return membership.tls_problem;
  const auto ready = membership.tls->look();
  return ready ? "" : ready.error().what;
}

link::Handshake new_handshake(const Membership& membership, Proving::Side side) {
  link::Nonce nonce;
  os::fill_with_random(nonce.data(), nonce.size());
  link::Terms terms{membership.job, membership.token, !membership.in_the_clear(),
                    problem_of(membership)};
  return side == Proving::Side::kClient
             ? link::Handshake::of_client(std::move(terms), membership.kind, nonce)
             : link::Handshake::of_server(std::move(terms), nonce);
}

}  // namespace

std::string peer_of(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "a peer that is gone";
  return host_and_port(endpoint.address().to_string(), endpoint.port());
}

void watch_expiry(Loop& loop, std::weak_ptr<void> holder, std::weak_ptr<tls::Context> watched) {
  const auto context = watched.lock();
  if (!context || holder.expired()) return;
  context->remind(Loop::now());
  loop.after(kBetweenReminders, [&loop, holder = std::move(holder), watched = std::move(watched)] {
    watch_expiry(loop, holder, watched);
  });
}

Proving::Proving(Loop& loop, asio::ip::tcp::socket socket, Membership membership, Side side,
                 std::string host)
    : loop_(loop),
      socket_(std::move(socket)),
      membership_(std::move(membership)),
      side_(side),
      host_(std::move(host)),
      peer_(peer_of(socket_)),
      stream_(socket_.native_handle()),
      handshake_(new_handshake(membership_, side)) {
  // Sends at once: where TLS begins and ends, one end sends two messages in a row.
  const int yes = 1;
  (void)::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

Proving::~Proving() {
  close_guarded(socket_);
}

void Proving::begin(Done done) {
  done_ = std::move(done);
  // A server waits for the first word: a silent peer costs no more than the socket.
  side_ == Side::kClient ? go_on(false) : wait(Stream::Outcome::kWantsToRead);
}

void Proving::abandon() {
  done_ = nullptr;
  over_ = true;
  close_guarded(socket_);
}

bool Proving::has_spoken() {
  char byte = 0;
  return ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void Proving::wait(Stream::Outcome wanted) {
  const auto what = wanted == Stream::Outcome::kWantsToWrite ? asio::ip::tcp::socket::wait_write
                                                             : asio::ip::tcp::socket::wait_read;
  socket_.async_wait(what, [self = shared_from_this()](const std::error_code& error) {
    if (error || self->over_) return;
    self->ends_ ? self->say_goodbye() : self->go_on(true);
    const int words = self->handshake_.words_taken();
    if (std::exchange(self->words_then_, words) != words) self->waits_since_ = Loop::now();
  });
}

// `has_come`: there is something to read, mostly one message. TLS may have read it already.
void Proving::go_on(bool has_come) {
  using State = link::Handshake::State;
  while (write()) {
    switch (handshake_.state()) {
      case State::kUnderWay:
        if (!std::exchange(has_come, false) && !stream_.is_under_tls()) {
          return wait(Stream::Outcome::kWantsToRead);
        }
        if (!read()) return;
        break;
      case State::kOpened:
        if (!shake_hands()) return;
        break;
      case State::kProven:
        return finish();
      case State::kRefused:
        return fail({Blame::kPeer, handshake_.why()});
    }
  }
}

Result<tls::SslPtr> Proving::begin_tls() {
  using Peer = tls::Context::Peer;
  if (!is_among_peers()) return membership_.tls->begin();
  return membership_.tls->begin_with(side_ == Side::kClient ? Peer::kConnects : Peer::kAccepts);
}

// True: TLS is done, and the handshake goes on under it.
bool Proving::shake_hands() {
  if (!stream_.is_under_tls()) {
    const bool names_host = side_ == Side::kClient && !is_among_peers();
    auto ssl = begin_tls();
    auto named = ssl && names_host ? tls::require_host(ssl->get(), host_) : Status{};
    if (!ssl || !named) {
      fail(ssl ? named.error() : ssl.error());
      return false;
    }
    if (names_host) tls::offer_session(ssl->get());
    stream_.put_under_tls(*std::move(ssl));
  }
  const auto outcome = stream_.shake_hands();
  if (outcome == Stream::Outcome::kDone) {
    auto binding = stream_.binding();
    if (binding) {
      handshake_.go_on_under_tls(*std::move(binding));
      return true;
    }
    fail(binding.error());
    return false;
  }
  if (outcome == Stream::Outcome::kBroken || outcome == Stream::Outcome::kEnd) {
    // A server that has refused a client says nothing under TLS either.
    const bool refused = side_ == Side::kClient && !stream_.has_heard();
    fail(refused ? Error{Blame::kPeer, handshake_.why_closed()}
                 : stream_.why_broken("the TLS handshake"));
  } else {
    wait(outcome);
  }
  return false;
}

// True: all messages so far are written.
bool Proving::write() {
  outgoing_ += handshake_.to_send();
  while (!outgoing_.empty()) {
    const auto [outcome, bytes] = stream_.write(outgoing_);
    if (outcome == Stream::Outcome::kDone) {
      outgoing_.erase(0, bytes);
    } else if (outcome == Stream::Outcome::kBroken) {
      outgoing_.clear();  // The peer's last words may say why.
    } else {
      wait(outcome);
      return false;
    }
  }
  return true;
}

// True: something has come. Not a byte more is read than the handshake awaits: what follows is
// TLS's, or a message's.
bool Proving::read() {
  std::array<char, kBlock> block;
  const auto [outcome, bytes] =
      stream_.read(std::span(block).first(std::min(kBlock, handshake_.missing())));
  if (outcome == Stream::Outcome::kDone) {
    std::string_view heard(block.data(), bytes);
    (void)handshake_.take(heard);
    return true;
  }
  if (outcome == Stream::Outcome::kEnd) {
    fail({Blame::kPeer, handshake_.why_closed()});
  } else if (outcome == Stream::Outcome::kBroken) {
    fail(stream_.why_broken("the connection"));
  } else {
    wait(outcome);
  }
  return false;
}

void Proving::finish() {
  over_ = true;
  if (const auto done = std::exchange(done_, nullptr)) {
    done(Proven{std::move(socket_), std::move(stream_), handshake_.kind(), peer_});
  }
}

void Proving::fail(Error error) {
  ends_ = true;
  stream_.end_writing();
  // The wait for the peer's end holds this. If the timer held it too, a flood of peers that are
  // gone would take a second's worth of memory.
  loop_.after(kGoodbye, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->abandon();
  });
  if (const auto done = std::exchange(done_, nullptr)) done(std::move(error));
  if (!over_) say_goodbye();
}

// Reads on until the peer closes its side, too.
void Proving::say_goodbye() {
  std::array<char, kBlock> ignored;
  const ssize_t got = ::recv(socket_.native_handle(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  if (got > 0) ignored_ += static_cast<std::size_t>(got);
  const bool goes_on = got > 0 || (got < 0 && errno == EAGAIN);
  goes_on&& ignored_ <= kMostIgnored ? wait(Stream::Outcome::kWantsToRead) : abandon();
}

}  // namespace holdfast::io
