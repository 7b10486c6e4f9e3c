// Handshake: how both ends of a connection prove that they belong to one job, before anything else
// is said on it.
//
// Pure: no clock, no socket, no randomness of its own. A peer without the job's token learns only
// that Holdfast listens here, and whether under TLS. docs/formats/handshake.md has the byte table,
// and what each rule is good for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "link/token.h"
#include "wire/peer.h"

namespace holdfast::link {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kLongestProblem = 255;
inline constexpr std::string_view kMagic = "HFL2";  // What a client sends first.
using Nonce = std::array<char, kNonceBytes>;

// What both ends have to agree on, or the proof fails.
struct Terms {
  std::string job;  // The job's name.
  Token token;      // Only the job's processes know it.
  bool under_tls = false;
  // Under TLS: why this end can not begin it now, in a sentence. Empty: it can. A peer that has the
  // token is told it, cut to kLongestProblem.
  std::string problem = {};
};

// One end of a handshake. A nonce is random, and serves one handshake only.
class Handshake {
 public:
  static Handshake of_client(Terms terms, wire::PeerKind kind, const Nonce& nonce);
  static Handshake of_server(Terms terms, const Nonce& nonce);

  // kOpened: the client has shown that it has the token, so TLS may begin. go_on_under_tls() ends
  // it.
  enum class State : std::uint8_t { kUnderWay, kOpened, kProven, kRefused };

  // Takes bytes off the beginning of `bytes`, as long as the handshake is under way. It never holds
  // more than 289 bytes: a complaint.
  State take(std::string_view& bytes);
  // How many bytes the awaited message still lacks. Read no more: what follows may be TLS's.
  [[nodiscard]] std::size_t missing() const { return wanted() - held_.size(); }
  // Call it in kOpened, once TLS has shaken hands. `binding`: bytes that only the two ends of this
  // TLS connection can compute.
  void go_on_under_tls(std::string binding);
  // What has to be sent now, also after a refusal.
  [[nodiscard]] std::string to_send();
  [[nodiscard]] State state() const { return state_; }
  // Whole messages of the peer, so far.
  [[nodiscard]] int words_taken() const { return words_taken_; }

  // Why the peer has closed the connection before the handshake's end, as far as this end can tell.
  [[nodiscard]] std::string why_closed() const;
  // A server's: its peer has shown that it has the token.
  [[nodiscard]] bool is_opened() const { return opened_; }
  // kRefused: one sentence. It holds nothing that a stranger has sent: only the problem of a peer
  // that has the token, in printable letters.
  [[nodiscard]] const std::string& why() const { return why_; }
  // A server's, kProven: what its peer has proven itself as.
  [[nodiscard]] wire::PeerKind kind() const { return kind_; }

 private:
  enum class Side : std::uint8_t { kClient, kServer };
  enum class Awaited : std::uint8_t { kHello, kChallenge, kOpening, kComplaint, kProof, kWelcome };

  Handshake(Side side, Terms terms, wire::PeerKind kind, const Nonce& nonce);
  [[nodiscard]] std::size_t wanted() const;
  void take_whole(std::string_view message);
  void take_hello(std::string_view message);
  void take_challenge(std::string_view message);
  void take_opening(std::string_view message);
  void take_complaint(std::string_view message);
  void take_proof(std::string_view message);
  void take_welcome(std::string_view message);
  [[nodiscard]] bool takes_claim(char kind, std::string_view proof, Purpose purpose,
                                 std::string_view text = {});
  void refuse(std::string why);
  void complain(Side side);
  [[nodiscard]] std::string proof_for(Purpose purpose, std::string_view text = {}) const;

  Terms terms_;
  std::string binding_;  // Empty: no TLS as yet.
  wire::PeerKind kind_;
  bool opened_ = false;
  Nonce client_nonce_{};
  Nonce server_nonce_{};
  Awaited awaited_;
  State state_ = State::kUnderWay;
  int words_taken_ = 0;
  std::string held_;
  std::string to_send_;
  std::string why_;
};

}  // namespace holdfast::link
