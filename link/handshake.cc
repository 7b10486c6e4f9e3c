#include "link/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::link {
namespace {

constexpr const char* kOtherJob =
    "it has another token or is of another job: see HOLDFAST_TOKEN_FILE and HOLDFAST_JOB, and "
    "MS_SCHED_PORT, which is the job's name where none is given";
constexpr const char* kOtherForm =
    "give all processes of the job the same HOLDFAST_TLS_CONFIG, or none";

std::string mac(const std::string& key, const std::string& text) {
  std::string out(kMacBytes, '\0');
  unsigned size = 0;
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                          reinterpret_cast<unsigned char*>(out.data()), &size);
  HF_ASSERT(made != nullptr && size == kMacBytes);
  return out;
}

std::string sized(std::string_view text) {
  std::string out;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    out += static_cast<char>(text.size() >> shift & 0xffU);
  }
  return out.append(text);
}

std::string_view view(const Nonce& nonce) {
  return {nonce.data(), nonce.size()};
}

Nonce nonce_from(std::string_view bytes) {
  Nonce nonce;
  std::copy(bytes.begin(), bytes.end(), nonce.begin());
  return nonce;
}

}  // namespace

bool looks_like_tls(std::string_view first_bytes) {
  // A record of SSL 3 to TLS 1.3, of the type "handshake" or "alert".
  return first_bytes.size() >= 2 && (first_bytes[0] == 0x16 || first_bytes[0] == 0x15) &&
         first_bytes[1] == 0x03;
}

Handshake::Handshake(Side side, Terms terms, wire::PeerKind kind, const Nonce& nonce)
    : terms_(std::move(terms)),
      kind_(kind),
      awaited_(side == Side::kClient ? Awaited::kChallenge : Awaited::kHello) {
  (side == Side::kClient ? client_nonce_ : server_nonce_) = nonce;
  if (side == Side::kClient) to_send_ = cat(kMagic, view(client_nonce_));
}

Handshake Handshake::of_client(Terms terms, wire::PeerKind kind, const Nonce& nonce) {
  return {Side::kClient, std::move(terms), kind, nonce};
}

Handshake Handshake::of_server(Terms terms, const Nonce& nonce) {
  return {Side::kServer, std::move(terms), wire::PeerKind::kObserver, nonce};
}

std::size_t Handshake::wanted() const {
  switch (awaited_) {
    case Awaited::kHello:
      return kMagic.size() + kNonceBytes;
    case Awaited::kChallenge:
      return kNonceBytes;
    case Awaited::kProof:
      return 1 + kMacBytes;
    case Awaited::kWelcome:
      return kMacBytes;
  }
  return 0;
}

Handshake::State Handshake::take(std::string_view& bytes) {
  while (state_ == State::kUnderWay && !bytes.empty()) {
    const auto part = bytes.substr(0, wanted() - held_.size());
    held_ += part;
    bytes.remove_prefix(part.size());
    // A stranger is sent away at its first wrong letter: it need not send the rest.
    const auto beginning = std::string_view(held_).substr(0, kMagic.size());
    if (awaited_ == Awaited::kHello && !kMagic.starts_with(beginning)) {
      take_hello(held_);
    } else if (held_.size() == wanted()) {
      ++words_taken_;
      take_whole(std::exchange(held_, {}));
    }
  }
  return state_;
}

void Handshake::take_whole(std::string_view message) {
  switch (awaited_) {
    case Awaited::kHello:
      return take_hello(message);
    case Awaited::kChallenge:
      return take_challenge(message);
    case Awaited::kProof:
      return take_proof(message);
    case Awaited::kWelcome:
      return take_welcome(message);
  }
}

std::string Handshake::to_send() {
  return std::exchange(to_send_, {});
}

void Handshake::take_hello(std::string_view message) {
  if (!message.starts_with(kMagic)) {
    const bool tls = message[0] == 0x16;
    // TLS reads five bytes before it judges that they are none of TLS.
    if (tls) to_send_ = cat(kMagic, kMagic);
    return refuse(tls ? cat("it speaks TLS, and this process does not: ", kOtherForm)
                      : "it is no process of a job, or one of an older Holdfast");
  }
  client_nonce_ = nonce_from(message.substr(kMagic.size()));
  to_send_ = view(server_nonce_);
  awaited_ = Awaited::kProof;
}

void Handshake::take_challenge(std::string_view message) {
  server_nonce_ = nonce_from(message);
  to_send_ = cat(static_cast<char>(kind_), proof_of(Side::kClient));
  awaited_ = Awaited::kWelcome;
}

void Handshake::take_proof(std::string_view message) {
  const auto kind = static_cast<std::uint8_t>(message[0]);
  if (!wire::is_known(static_cast<wire::PeerKind>(kind))) {
    return refuse("it is nothing that a job has");
  }
  kind_ = static_cast<wire::PeerKind>(kind);
  const std::string wanted = proof_of(Side::kClient);
  if (CRYPTO_memcmp(message.data() + 1, wanted.data(), kMacBytes) != 0) return refuse(kOtherJob);
  to_send_ = proof_of(Side::kServer);
  state_ = State::kProven;
}

void Handshake::take_welcome(std::string_view message) {
  const std::string wanted = proof_of(Side::kServer);
  if (CRYPTO_memcmp(message.data(), wanted.data(), kMacBytes) != 0) return refuse(kOtherJob);
  state_ = State::kProven;
}

void Handshake::refuse(std::string why) {
  state_ = State::kRefused;
  why_ = std::move(why);
}

std::string Handshake::why_closed() const {
  if (looks_like_tls(held_) || held_.starts_with(kMagic)) {
    return cat(
        "it speaks ",
        looks_like_tls(held_) ? "TLS, and this process does not" : "no TLS, and this process does",
        ": ", kOtherForm);
  }
  if (awaited_ == Awaited::kWelcome)
    return cat("it did not accept this process, or ended just then: ", kOtherJob);
  return "it closed the connection before it had proven anything";
}

// The two sides' texts differ, so that neither proof can be sent back as the other. Each field has
// a fixed size or its size before it, so that no two sets of fields give one text.
std::string Handshake::proof_of(Side side) const {
  return mac(terms_.token, cat("holdfast ", side == Side::kClient ? "client" : "server", '\0',
                               sized(terms_.job), sized(terms_.binding), static_cast<char>(kind_),
                               view(client_nonce_), view(server_nonce_)));
}

}  // namespace holdfast::link
