#include "io/stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "os/errors.h"
#include "os/lost_pages.h"
#include "tls/handshake.h"

namespace holdfast::io {
namespace {

constexpr std::string_view kBindingLabel = "EXPORTER-holdfast-membership";
constexpr std::size_t kBindingBytes = 32;

// OpenSSL's own BIO of a socket raises SIGPIPE, which would end a training program.
int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int note_whether_to_retry(BIO* bio, ssize_t moved, int flag) {
  BIO_clear_retry_flags(bio);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR))
    BIO_set_flags(bio, flag | BIO_FLAGS_SHOULD_RETRY);
  return static_cast<int>(moved);
}

int bio_write(BIO* bio, const char* bytes, int size) {
  return note_whether_to_retry(
      bio,
      ::send(socket_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT),
      BIO_FLAGS_WRITE);
}

int bio_read(BIO* bio, char* into, int size) {
  const ssize_t got = ::recv(socket_of(bio), into, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return note_whether_to_retry(bio, got, BIO_FLAGS_READ);
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* bio_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    HF_ASSERT(made != nullptr);
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

}  // namespace

void Stream::put_under_tls(tls::SslPtr ssl) {
  BIO* bio = BIO_new(bio_method());
  HF_ASSERT(bio != nullptr);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket_)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl.get(), bio, bio);
  SSL_set_mode(ssl.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  ssl_ = std::move(ssl);
}

Stream::Outcome Stream::shake_hands() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  return result == 1 ? Outcome::kDone : outcome_of(result).outcome;
}

bool Stream::has_heard() const {
  return BIO_number_read(SSL_get_rbio(ssl_.get())) > 0;
}

Stream::Moved Stream::read(std::span<char> into) {
  if (ssl_) {
    ERR_clear_error();
    errno = 0;
    const int got = SSL_read(ssl_.get(), into.data(),
                             static_cast<int>(std::min<std::size_t>(into.size(), INT_MAX)));
    return got > 0 ? Moved{Outcome::kDone, static_cast<std::size_t>(got)} : outcome_of(got);
  }
  while (true) {
    const ssize_t got = ::recv(socket_, into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) return {Outcome::kDone, static_cast<std::size_t>(got)};
    if (got == 0) return {Outcome::kEnd};
    if (errno == EAGAIN) return {Outcome::kWantsToRead};
    if (errno != EINTR) return broken_at(std::as_bytes(into));
  }
}

Stream::Moved Stream::write(std::string_view bytes) {
  if (ssl_) {
    ERR_clear_error();
    errno = 0;
    const int sent = SSL_write(ssl_.get(), bytes.data(),
                               static_cast<int>(std::min<std::size_t>(bytes.size(), INT_MAX)));
    return sent > 0 ? Moved{Outcome::kDone, static_cast<std::size_t>(sent)} : outcome_of(sent);
  }
  while (true) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) return {Outcome::kDone, static_cast<std::size_t>(sent)};
    if (errno == EAGAIN) return {Outcome::kWantsToWrite};
    if (errno != EINTR) return broken_at(std::as_bytes(std::span(bytes)));
  }
}

// If it is the kernel that has met a lost page of these bytes, no signal tells of it. So they are
// read once, that the loss is noted (os/lost_pages.h).
Stream::Moved Stream::broken_at(std::span<const std::byte> bytes) {
  const int error_number = errno;
  if (error_number == EFAULT) os::touch(bytes);
  return broken_by(error_number);
}

Stream::Moved Stream::outcome_of(int result) {
  const int error_number = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return {Outcome::kWantsToRead};
    case SSL_ERROR_WANT_WRITE:
      return {Outcome::kWantsToWrite};
    case SSL_ERROR_ZERO_RETURN:
      return {Outcome::kEnd};
    default:
      break;
  }
  // A process that is killed does not say goodbye. Messages have their lengths, so none is cut.
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  if (ended && SSL_is_init_finished(ssl_.get()) == 1) {
    ERR_clear_error();
    return {Outcome::kEnd};
  }
  if (ERR_peek_error() == 0 && error_number != 0) return broken_by(error_number);
  words_ = tls::why(ssl_.get(), result);
  return {Outcome::kBroken};
}

// Atomic, because a thread that reads and one that writes may both find the socket broken.
Stream::Moved Stream::broken_by(int error_number) {
  std::atomic_ref(error_number_).store(error_number, std::memory_order_relaxed);
  return {Outcome::kBroken};
}

void Stream::end_writing() {
  if (ssl_ && SSL_is_init_finished(ssl_.get()) == 1) {
    ERR_clear_error();
    (void)SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  (void)::shutdown(socket_, SHUT_WR);
}

Result<std::string> Stream::binding() const {
  HF_ASSERT(ssl_ != nullptr);
  // Without it, an attacker between two ends can give both connections the same keys (RFC 7627).
  if (SSL_version(ssl_.get()) < TLS1_3_VERSION && SSL_get_extms_support(ssl_.get()) != 1) {
    return Error{Blame::kUser,
                 "the TLS handshake was of TLS 1.2 without the extended master secret (RFC 7627), "
                 "so it does not show who the peer is: allow TLS 1.3 in the cipher_list of both "
                 "sides, or that extension in their OpenSSL"};
  }
  std::string bytes(kBindingBytes, '\0');
  const int made = SSL_export_keying_material(
      ssl_.get(), reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
      kBindingLabel.data(), kBindingLabel.size(), nullptr, 0, 0);
  HF_ASSERT(made == 1);  // It fails only before the handshake.
  return bytes;
}

Error Stream::why_broken(std::string_view what) const {
  if (!words_.empty()) return {Blame::kUser, cat(what, ": ", words_)};
  return os::system_error(cat(what, " broke"), error_number_);
}

}  // namespace holdfast::io
