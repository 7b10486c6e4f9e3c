// Handshake: how both ends of a connection prove that they belong to one job, before anything else
// is said on it.
//
// Pure: no clock, no socket, no randomness of its own. Whoever does not have the job's token learns
// nothing from it but that Holdfast listens. docs/formats/handshake.md has the byte table, and what
// each rule is good for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "wire/peer.h"

namespace holdfast::link {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kMacBytes = 32;
inline constexpr std::string_view kMagic = "HFL1";  // What a client sends first.
using Nonce = std::array<char, kNonceBytes>;

// What both ends have to agree on, or the proof fails.
struct Terms {
  std::string job;      // Its name.
  std::string token;    // What only its processes know. Empty: their certificates prove the rest.
  std::string binding;  // Of the TLS connection below. Empty: there is none.
};

// One end. A nonce is of random bytes, and of one handshake alone.
class Handshake {
 public:
  static Handshake of_client(Terms terms, wire::PeerKind kind, const Nonce& nonce);
  static Handshake of_server(Terms terms, const Nonce& nonce);

  enum class State : std::uint8_t { kUnderWay, kProven, kRefused };

  // Takes what has come, up to the end of the handshake, off the beginning of `bytes`. It never
  // holds more than 68 bytes.
  State take(std::string_view& bytes);
  // What has to be sent now, also after a refusal.
  [[nodiscard]] std::string to_send();
  [[nodiscard]] State state() const { return state_; }
  // Whole messages of the peer, so far.
  [[nodiscard]] int words_taken() const { return words_taken_; }

  // The peer has closed the connection before the end: why, as far as this end can tell.
  [[nodiscard]] std::string why_closed() const;
  // kRefused: one sentence. It holds nothing that the peer has sent.
  [[nodiscard]] const std::string& why() const { return why_; }
  // A server's, kProven: what its peer has proven itself as.
  [[nodiscard]] wire::PeerKind kind() const { return kind_; }

 private:
  enum class Side : std::uint8_t { kClient, kServer };
  enum class Awaited : std::uint8_t { kHello, kChallenge, kProof, kWelcome };

  Handshake(Side side, Terms terms, wire::PeerKind kind, const Nonce& nonce);
  [[nodiscard]] std::size_t wanted() const;
  void take_whole(std::string_view message);
  void take_hello(std::string_view message);
  void take_challenge(std::string_view message);
  void take_proof(std::string_view message);
  void take_welcome(std::string_view message);
  void refuse(std::string why);
  [[nodiscard]] std::string proof_of(Side side) const;

  Terms terms_;
  wire::PeerKind kind_;
  Nonce client_nonce_{};
  Nonce server_nonce_{};
  Awaited awaited_;
  State state_ = State::kUnderWay;
  int words_taken_ = 0;
  std::string held_;
  std::string to_send_;
  std::string why_;
};

// Whether a connection begins as one of TLS does, with a handshake or an alert.
[[nodiscard]] bool looks_like_tls(std::string_view first_bytes);

}  // namespace holdfast::link
