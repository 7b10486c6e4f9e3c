#include "io/proving.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/text.h"
#include "io/connection_impl.h"
#include "os/errors.h"
#include "os/random_bits.h"
#include "tls/context.h"
#include "tls/handshake.h"

namespace holdfast::io {
namespace {

// From a refusal to the end of the connection. If it were closed with unread bytes, the peer might
// lose what it was told.
constexpr Duration kGoodbye = std::chrono::seconds(1);
constexpr std::size_t kBlock = 4096;
constexpr std::size_t kMostIgnored = 65536;  // Bytes after a refusal.
// A TLS alert: there is no such version here. It tells a client in the clear what it met.
constexpr std::string_view kOnlyTls("\x15\x03\x01\x00\x02\x02\x46", 7);

link::Nonce new_nonce() {
  link::Nonce nonce;
  os::fill_with_random(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace

std::string peer_of(const asio::ip::tcp::socket& socket) {
  asio::error_code error;
  const auto endpoint = socket.remote_endpoint(error);
  if (error) return "a peer that is gone";
  return host_and_port(endpoint.address().to_string(), endpoint.port());
}

Proving::Proving(Loop& loop, asio::ip::tcp::socket socket, Membership membership, Side side,
                 std::string host)
    : loop_(loop),
      socket_(std::move(socket)),
      membership_(std::move(membership)),
      side_(side),
      host_(std::move(host)),
      peer_(peer_of(socket_)),
      stream_(socket_.native_handle()) {}

Proving::~Proving() {
  close_guarded(socket_);
}

void Proving::begin(Done done) {
  done_ = std::move(done);
  // A server hears first: who says nothing costs no more than the socket.
  side_ == Side::kClient ? go_on() : wait(Stream::Outcome::kWantsToRead);
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
    self->ends_ ? self->say_goodbye() : self->go_on();
    if (std::exchange(self->words_then_, self->words_taken()) != self->words_taken()) {
      self->waits_since_ = Loop::now();
    }
  });
}

// Who sends letter by letter gets no further.
int Proving::words_taken() const {
  return (under_tls_ ? 1 : 0) + (handshake_ ? 1 + handshake_->words_taken() : 0);
}

void Proving::go_on() {
  if (membership_.tls && !under_tls_ && (!speaks_first_as_it_should() || !put_under_tls())) return;
  if (!handshake_) {
    if (membership_.tls && !shake_hands()) return;
    make_handshake();
  }
  if (write()) read();
}

// Whether the first bytes of a client that has to speak TLS are TLS. To see it now spares the
// handshake, and the client gets a word that it understands.
bool Proving::speaks_first_as_it_should() {
  if (side_ == Side::kClient) return true;
  char first[4];
  const ssize_t got = ::recv(socket_.native_handle(), first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) {
    wait(Stream::Outcome::kWantsToRead);
    return false;
  }
  if (got <= 0 || first[0] == 0x16) return true;
  (void)stream_.write(kOnlyTls);
  fail({Blame::kPeer, std::string_view(first, static_cast<std::size_t>(got)) == link::kMagic
                          ? "it speaks no TLS: give all processes of the job the same "
                            "HOLDFAST_TLS_CONFIG"
                          : "it speaks no TLS, and is no process of a job"});
  return false;
}

bool Proving::put_under_tls() {
  auto ssl = membership_.tls->begin();
  auto named = ssl && side_ == Side::kClient ? tls::require_host(ssl->get(), host_) : Status{};
  if (!ssl || !named) {
    fail(ssl ? named.error() : ssl.error());
    return false;
  }
  stream_.put_under_tls(*std::move(ssl));
  under_tls_ = true;
  return true;
}

bool Proving::shake_hands() {
  const auto outcome = stream_.shake_hands();
  if (outcome == Stream::Outcome::kDone) return true;
  if (outcome == Stream::Outcome::kBroken || outcome == Stream::Outcome::kEnd) {
    fail(outcome == Stream::Outcome::kEnd
             ? Error{Blame::kPeer, "it closed the connection in the middle of the TLS handshake"}
             : stream_.why_broken("the TLS handshake"));
  } else {
    wait(outcome);
  }
  return false;
}

void Proving::make_handshake() {
  link::Terms terms{membership_.job, membership_.token, stream_.binding()};
  handshake_ = side_ == Side::kClient
                   ? link::Handshake::of_client(std::move(terms), membership_.kind, new_nonce())
                   : link::Handshake::of_server(std::move(terms), new_nonce());
  outgoing_ = handshake_->to_send();
}

// True: all is written.
bool Proving::write() {
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

void Proving::read() {
  std::array<char, kBlock> block;
  while (handshake_->state() == link::Handshake::State::kUnderWay) {
    const auto [outcome, bytes] = stream_.read(block);
    if (outcome == Stream::Outcome::kEnd) {
      return fail({Blame::kPeer, handshake_->why_closed()});
    }
    if (outcome == Stream::Outcome::kBroken) return fail(stream_.why_broken("the connection"));
    if (outcome != Stream::Outcome::kDone) return wait(outcome);
    std::string_view read(block.data(), bytes);
    (void)handshake_->take(read);
    rest_ = read;
    outgoing_ = handshake_->to_send();
    if (!write()) return;
  }
  handshake_->state() == link::Handshake::State::kProven ? finish()
                                                         : fail({Blame::kPeer, handshake_->why()});
}

void Proving::finish() {
  over_ = true;
  if (const auto done = std::exchange(done_, nullptr)) {
    done(Proven{std::move(socket_), std::move(stream_), std::move(rest_), handshake_->kind(),
                peer_});
  }
}

void Proving::fail(Error error) {
  ends_ = true;
  stream_.end_writing();
  // What waits for the peer's end holds this. If the timer held it too, a flood of peers that are
  // gone would take a second's worth of memory.
  loop_.after(kGoodbye, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->abandon();
  });
  if (const auto done = std::exchange(done_, nullptr)) done(std::move(error));
  if (!over_) say_goodbye();
}

// Until the peer closes its side, too.
void Proving::say_goodbye() {
  std::array<char, kBlock> ignored;
  const ssize_t got = ::recv(socket_.native_handle(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  if (got > 0) ignored_ += static_cast<std::size_t>(got);
  const bool goes_on = got > 0 || (got < 0 && errno == EAGAIN);
  goes_on&& ignored_ <= kMostIgnored ? wait(Stream::Outcome::kWantsToRead) : abandon();
}

}  // namespace holdfast::io
