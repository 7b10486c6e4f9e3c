#include "io/peer_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "base/text.h"
#include "io/connection_impl.h"

namespace holdfast::io {
namespace {

void set_option(int fd, int level, int name, int value) {
  // A kernel that lacks one of these still serves.
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

// Reads the first word of one peer.
class Reading : public std::enable_shared_from_this<Reading> {
 public:
  using Descriptor = asio::posix::stream_descriptor;
  using Missing = std::function<std::size_t(std::string_view)>;
  using Answer = std::function<void(Result<FirstWord>)>;

  Reading(Loop& loop, PeerStream stream, Missing missing, Answer answer)
      : loop_(loop),
        stream_(std::move(stream)),
        missing_(std::move(missing)),
        answer_(std::move(answer)),
        watched_(loop.impl().context, stream_.descriptor()) {}
  // Not only in end(): this may be destroyed with its loop, in the midst of waiting.
  ~Reading() {
    if (watched_.is_open()) watched_.release();
  }

  void begin(Duration patience) {
    // Weak: the wait for the socket holds this.
    timer_ = loop_.after(patience, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->fail("it has not said in time what it wants");
    });
    go_on();
  }

 private:
  using Outcome = Stream::Outcome;

  void go_on() {
    std::array<char, 512> bytes;
    while (const std::size_t missing = missing_(word_)) {
      const auto [outcome, got] =
          stream_.stream().read(std::span(bytes).first(std::min(missing, bytes.size())));
      if (outcome == Outcome::kEnd) return fail("it closed the connection without a word");
      if (outcome == Outcome::kBroken) {
        return fail(stream_.stream().why_broken("the connection").what);
      }
      if (outcome != Outcome::kDone) return wait(outcome);
      word_.append(bytes.data(), got);
    }
    end();
    std::exchange(answer_, nullptr)(FirstWord{std::move(stream_), std::move(word_)});
  }

  void wait(Outcome wanted) {
    watched_.async_wait(
        wanted == Outcome::kWantsToWrite ? Descriptor::wait_write : Descriptor::wait_read,
        [self = shared_from_this()](const std::error_code& error) {
          if (!error && self->answer_) self->go_on();
        });
  }

  void fail(const std::string& why) {
    if (!answer_) return;
    end();
    std::exchange(answer_, nullptr)(Error{Blame::kPeer, cat(stream_.peer(), ": ", why)});
    stream_ = {};
  }

  void end() {
    loop_.cancel(timer_);
    watched_.release();  // Ends the wait for the socket.
  }

  Loop& loop_;
  PeerStream stream_;
  const Missing missing_;
  Answer answer_;  // Empty once it was called.
  Descriptor watched_;
  std::string word_;
  Loop::TimerId timer_ = Loop::TimerId::kNone;
};

}  // namespace

void watch_peer(int fd, Duration silence_limit) {
  using std::chrono::duration_cast;
  const auto limit = duration_cast<std::chrono::milliseconds>(silence_limit).count();
  const auto probe_seconds = static_cast<int>(std::max<std::int64_t>(1, limit / 3000));
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, probe_seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, probe_seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit));
}

PeerStream make_stream(Proven proven, Duration silence_limit) {
  const int fd = proven.socket.release();  // It stays guarded.
  watch_peer(fd, silence_limit);
  return {fd, std::move(proven.stream), std::move(proven.peer)};
}

PeerStream& PeerStream::operator=(PeerStream&& other) noexcept {
  if (this == &other) return *this;
  if (socket_ >= 0) discard(socket_);
  socket_ = std::exchange(other.socket_, -1);
  stream_ = std::move(other.stream_);
  peer_ = std::move(other.peer_);
  return *this;
}

PeerStream::~PeerStream() {
  if (socket_ >= 0) discard(socket_);
}

void PeerStream::cut() const {
  (void)::shutdown(socket_, SHUT_RDWR);
}

void connect_stream(Loop& loop, const std::string& host, std::uint16_t port, Membership membership,
                    Duration timeout, std::function<void(Result<PeerStream>)> on_result,
                    Duration silence_limit) {
  connect_proven(loop, host, port, std::move(membership), timeout,
                 [on_result = std::move(on_result), silence_limit](Result<Proven> proven) {
                   if (!proven) return on_result(proven.error());
                   on_result(make_stream(*std::move(proven), silence_limit));
                 });
}

void read_first_word(Loop& loop, PeerStream stream,
                     std::function<std::size_t(std::string_view)> missing, Duration patience,
                     std::function<void(Result<FirstWord>)> on_result) {
  loop.impl().check_thread();
  const auto reading =
      std::make_shared<Reading>(loop, std::move(stream), std::move(missing), std::move(on_result));
  loop.post([reading, patience] { reading->begin(patience); });
}

}  // namespace holdfast::io
