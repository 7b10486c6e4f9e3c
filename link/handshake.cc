#include "link/handshake.h"

#include <openssl/crypto.h>

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
constexpr const char* kOtherRelease =
    "it is of another release of Holdfast, or none: give all processes of the job the same one";

constexpr char kInTheClear = 'c';
constexpr char kUnderTls = 't';
constexpr char kWouldBeUnderTls = 'x';  // From a server that can not begin TLS now.

// A complaint begins with the kind, the proof, and the length of the sentence that follows.
constexpr std::size_t kComplaintHead = 1 + kMacBytes + 1;
constexpr unsigned kComplaint = 0x80;  // Set in a complaint's first byte, besides the kind.

bool is_complaint(std::string_view message) {
  return !message.empty() && (static_cast<unsigned char>(message[0]) & kComplaint) != 0;
}

char form_of(const Terms& terms) {
  return terms.under_tls ? kUnderTls : kInTheClear;
}

bool is_form(char letter) {
  return letter == kInTheClear || letter == kUnderTls || letter == kWouldBeUnderTls;
}

// Why a peer is refused whose first bytes are none of this release's.
std::string why_wrong(std::string_view beginning) {
  // A record of TLS: "handshake", or "alert".
  const bool is_tls = beginning[0] == 0x16 || beginning[0] == 0x15;
  return is_tls ? cat("it begins with TLS, as earlier releases of Holdfast did: ", kOtherRelease)
                : kOtherRelease;
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

// Why a peer is refused whose form is not this end's.
std::string why_other_form(char form) {
  return cat(form == kUnderTls ? "it speaks TLS, and this process does not: "
                               : "it speaks no TLS, and this process does: ",
             kOtherForm);
}

}  // namespace

Handshake::Handshake(Side side, Terms terms, wire::PeerKind kind, const Nonce& nonce)
    : terms_(std::move(terms)),
      kind_(kind),
      awaited_(side == Side::kClient ? Awaited::kChallenge : Awaited::kHello) {
  (side == Side::kClient ? client_nonce_ : server_nonce_) = nonce;
  if (side == Side::kClient) to_send_ = cat(kMagic, form_of(terms_), view(client_nonce_));
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
      return kMagic.size() + 1 + kNonceBytes;
    case Awaited::kChallenge:
      return 1 + kNonceBytes;
    case Awaited::kOpening:
    case Awaited::kComplaint:
      if (!is_complaint(held_)) return 1 + kMacBytes;
      return held_.size() < kComplaintHead
                 ? kComplaintHead
                 : kComplaintHead + static_cast<unsigned char>(held_[kComplaintHead - 1]);
    case Awaited::kProof:
      return 1 + kMacBytes;
    case Awaited::kWelcome:
      return kMacBytes;
  }
  return 0;
}

Handshake::State Handshake::take(std::string_view& bytes) {
  while (state_ == State::kUnderWay && !bytes.empty()) {
    const auto part = bytes.substr(0, missing());
    held_ += part;
    bytes.remove_prefix(part.size());
    // A stranger is sent away at its first wrong letter: it need not send the rest.
    const auto beginning = std::string_view(held_).substr(0, kMagic.size());
    const bool is_wrong = awaited_ == Awaited::kHello
                              ? !kMagic.starts_with(beginning)
                              : awaited_ == Awaited::kChallenge && !is_form(held_[0]);
    if (is_wrong) {
      refuse(why_wrong(beginning));
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
    case Awaited::kOpening:
      return is_complaint(message) ? take_complaint(message) : take_opening(message);
    case Awaited::kComplaint:
      return take_complaint(message);
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
  const char form = message[kMagic.size()];
  client_nonce_ = nonce_from(message.substr(kMagic.size() + 1));
  // Sent also to a peer of the other form, which learns this end's form by it.
  to_send_ = cat(terms_.problem.empty() ? form_of(terms_) : kWouldBeUnderTls, view(server_nonce_));
  awaited_ = terms_.under_tls ? Awaited::kOpening : Awaited::kProof;
  if (form != form_of(terms_)) refuse(why_other_form(form));
}

void Handshake::take_challenge(std::string_view message) {
  const bool can_not = message[0] == kWouldBeUnderTls;
  const char form = can_not ? kUnderTls : message[0];
  if (form != form_of(terms_)) return refuse(why_other_form(form));
  server_nonce_ = nonce_from(message.substr(1));
  if (!terms_.problem.empty()) return complain(Side::kClient);
  if (terms_.under_tls) {
    to_send_ = cat(static_cast<char>(kind_), proof_for(Purpose::kMayBeginTls));
    if (can_not) {
      awaited_ = Awaited::kComplaint;
      return;
    }
    state_ = State::kOpened;
  } else {
    to_send_ = cat(static_cast<char>(kind_), proof_for(Purpose::kIsClient));
  }
  awaited_ = Awaited::kWelcome;
}

void Handshake::go_on_under_tls(std::string binding) {
  HF_ASSERT(state_ == State::kOpened && !binding.empty());
  binding_ = std::move(binding);
  state_ = State::kUnderWay;
  if (awaited_ == Awaited::kWelcome) {
    to_send_ = cat(static_cast<char>(kind_), proof_for(Purpose::kIsClient));
  }
}

// Whether the peer has proven the kind that it claims, by the key of this purpose.
bool Handshake::takes_claim(char letter, std::string_view proof, Purpose purpose,
                            std::string_view text) {
  const auto kind = static_cast<wire::PeerKind>(letter);
  if (!wire::is_known(kind) || (opened_ && kind != kind_)) {
    refuse("it is nothing that a job has");
    return false;
  }
  kind_ = kind;
  const std::string wanted = proof_for(purpose, text);
  if (CRYPTO_memcmp(proof.data(), wanted.data(), kMacBytes) == 0) return true;
  refuse(kOtherJob);
  return false;
}

void Handshake::take_opening(std::string_view message) {
  if (!takes_claim(message[0], message.substr(1), Purpose::kMayBeginTls)) return;
  opened_ = true;
  if (!terms_.problem.empty()) return complain(Side::kServer);
  state_ = State::kOpened;
  awaited_ = Awaited::kProof;
}

// If this server's own TLS does not work either, it answers with its own complaint.
void Handshake::take_complaint(std::string_view message) {
  const bool of_client = awaited_ == Awaited::kOpening;
  if (!is_complaint(message)) return refuse(kOtherJob);
  const auto text = message.substr(kComplaintHead);
  const auto purpose = of_client ? Purpose::kClientComplains : Purpose::kServerComplains;
  const auto kind = static_cast<char>(static_cast<unsigned char>(message[0]) ^ kComplaint);
  if (!takes_claim(kind, message.substr(1, kMacBytes), purpose, text)) return;
  opened_ = of_client;
  if (of_client && !terms_.problem.empty()) complain(Side::kServer);
  refuse(cat("it can not begin TLS: ", printable(text)));
}

// Sends this end's problem, in place of all else.
void Handshake::complain(Side side) {
  const auto text = std::string_view(terms_.problem).substr(0, kLongestProblem);
  const auto purpose =
      side == Side::kClient ? Purpose::kClientComplains : Purpose::kServerComplains;
  to_send_ = cat(static_cast<char>(static_cast<unsigned>(kind_) | kComplaint),
                 proof_for(purpose, text), static_cast<char>(text.size()), text);
  refuse(cat("this process can not begin TLS: ", terms_.problem));
}

void Handshake::take_proof(std::string_view message) {
  if (!takes_claim(message[0], message.substr(1), Purpose::kIsClient)) return;
  to_send_ = proof_for(Purpose::kIsServer);
  state_ = State::kProven;
}

void Handshake::take_welcome(std::string_view message) {
  const std::string wanted = proof_for(Purpose::kIsServer);
  if (CRYPTO_memcmp(message.data(), wanted.data(), kMacBytes) != 0) return refuse(kOtherJob);
  state_ = State::kProven;
}

void Handshake::refuse(std::string why) {
  state_ = State::kRefused;
  why_ = std::move(why);
}

std::string Handshake::why_closed() const {
  if (awaited_ == Awaited::kWelcome || awaited_ == Awaited::kComplaint)
    return cat("it did not accept this process, or ended just then: ", kOtherJob);
  if (awaited_ == Awaited::kChallenge) {
    return cat("it closed the connection without a word, as it does if ", kOtherRelease);
  }
  return "it closed the connection before it had proven anything";
}

// Each field has a fixed size or its size before it, so that no two sets of fields give one text.
std::string Handshake::proof_for(Purpose purpose, std::string_view text) const {
  return terms_.token.proof(purpose,
                            cat(sized(terms_.job), sized(binding_), static_cast<char>(kind_),
                                view(client_nonce_), view(server_nonce_), text));
}

}  // namespace holdfast::link
