#include "link/handshake.h"

#include <gtest/gtest.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/text.h"

namespace holdfast::link {
namespace {

using State = Handshake::State;
using wire::PeerKind;

constexpr const char* kToken = "a token that nobody knows";
const Terms kClear{.job = "job", .token = kToken};
const Terms kTls{.job = "job", .token = kToken, .under_tls = true};
constexpr const char* kBinding = "of this TLS connection";

Nonce nonce(std::uint64_t seed) {
  Prng prng(seed);
  Nonce made;
  for (auto& byte : made) byte = static_cast<char>(prng.below(256));
  return made;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Two ends and the messages between them, in order: hello, challenge, under TLS the opening, proof,
// welcome.
struct Meeting {
  Handshake client;
  Handshake server;
  std::string binding_of_client = kBinding;
  std::string binding_of_server = kBinding;
  std::vector<std::string> said;

  Meeting(const Terms& of_client, const Terms& of_server, PeerKind kind = PeerKind::kWorker,
          std::uint64_t seed = 1)
      : client(Handshake::of_client(of_client, kind, nonce(seed))),
        server(Handshake::of_server(of_server, nonce(seed + 1))) {}

  // Runs until neither end has anything to say. `change` may change each message on its way.
  template <class Change>
  void run(Change change) {
    for (bool from_client = true;; from_client = !from_client) {
      std::string message = (from_client ? client : server).to_send();
      if (message.empty()) {
        if (client.state() != State::kOpened || server.state() != State::kOpened) return;
        client.go_on_under_tls(binding_of_client);
        server.go_on_under_tls(binding_of_server);
        continue;
      }
      change(said.size(), message);
      said.push_back(message);
      std::string_view rest = said.back();
      (from_client ? server : client).take(rest);
    }
  }
  void run() {
    run([](std::size_t, std::string&) {});
  }
  [[nodiscard]] bool both_proven() const {
    return client.state() == State::kProven && server.state() == State::kProven;
  }
};

// Each test runs in the clear and under TLS.
class HandshakeOf : public testing::TestWithParam<bool> {
 protected:
  const Terms terms = GetParam() ? kTls : kClear;
  const std::size_t proof = GetParam() ? 3 : 2;  // The number of the proof among the messages.

  // A server that has got all messages before the proof, in a good handshake.
  [[nodiscard]] Handshake server_before_proof(const Nonce& drawn) const {
    auto server = Handshake::of_server(terms, drawn);
    auto client = Handshake::of_client(terms, PeerKind::kWorker, nonce(50));
    for (int i = 0; i < (GetParam() ? 2 : 1); ++i) {
      const std::string from_client = client.to_send();
      std::string_view bytes = from_client;
      server.take(bytes);
      const std::string from_server = server.to_send();
      bytes = from_server;
      client.take(bytes);
    }
    if (GetParam()) server.go_on_under_tls(kBinding);
    return server;
  }
};

INSTANTIATE_TEST_SUITE_P(Forms, HandshakeOf, testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Clear"; });

TEST_P(HandshakeOf, ProvesBothEndsAndWhatTheClientIs) {
  for (const auto kind :
       {PeerKind::kWorker, PeerKind::kAgent, PeerKind::kObserver, PeerKind::kPeer}) {
    Meeting meeting(terms, terms, kind);
    meeting.run();
    EXPECT_TRUE(meeting.both_proven());
    EXPECT_EQ(meeting.server.kind(), kind);
    EXPECT_EQ(meeting.server.is_opened(), GetParam());
    EXPECT_EQ(meeting.said.size(), proof + 2);
  }
}

TEST_P(HandshakeOf, NeedsTheSameTokenAndJob) {
  for (const auto& [job, token] :
       {std::pair("job", "another token"), std::pair("job2", ""), std::pair("job2", kToken),
        std::pair("job", ""), std::pair("", kToken)}) {
    Meeting meeting({.job = job, .token = token, .under_tls = terms.under_tls}, terms);
    meeting.run();
    EXPECT_EQ(meeting.server.state(), State::kRefused);
    EXPECT_FALSE(meeting.server.is_opened()) << "no TLS begins";
    EXPECT_NE(meeting.client.state(), State::kRefused) << "it is told nothing";
    EXPECT_EQ(meeting.said.size(), 3U);
    EXPECT_TRUE(has(meeting.server.why(), "HOLDFAST_TOKEN_FILE"));
    EXPECT_TRUE(has(meeting.client.why_closed(), "did not accept this process"));
  }
}

TEST(Handshake, NeedsTheSameTlsConnectionAtBothEnds) {
  Meeting meeting(kTls, kTls);
  meeting.binding_of_client = "of another one";
  meeting.run();
  EXPECT_EQ(meeting.server.state(), State::kRefused);
}

TEST(Handshake, FieldsCannotRunIntoOneAnother) {
  Meeting meeting({.job = "jo", .token = "t", .under_tls = true},
                  {.job = "j", .token = "t", .under_tls = true});
  meeting.binding_of_client = "b";
  meeting.binding_of_server = "ob";
  meeting.run();
  EXPECT_EQ(meeting.server.state(), State::kRefused);
}

// Every bit of every message counts, and no message is needed that is not there.
TEST_P(HandshakeOf, RefusesEveryMessageThatIsChanged) {
  Meeting good(terms, terms);
  good.run();
  for (std::size_t which = 0; which < good.said.size(); ++which) {
    for (std::size_t bit = 0; bit < good.said[which].size() * 8; ++bit) {
      Meeting meeting(terms, terms);
      meeting.run([&](std::size_t number, std::string& message) {
        if (number == which)
          message[bit / 8] = static_cast<char>(message[bit / 8] ^ (1 << bit % 8));
      });
      EXPECT_FALSE(meeting.both_proven()) << which << ' ' << bit;
      EXPECT_TRUE(which > proof || meeting.server.state() != State::kProven) << which << ' ' << bit;
      EXPECT_TRUE(which > 2 || !meeting.server.is_opened()) << which << ' ' << bit;
    }
    Meeting meeting(terms, terms);
    meeting.run([&](std::size_t number, std::string& message) {
      if (number == which) message.pop_back();
    });
    EXPECT_FALSE(meeting.both_proven()) << "cut: " << which;
    EXPECT_TRUE(which > 2 || !meeting.server.is_opened()) << "cut: " << which;
  }
}

TEST_P(HandshakeOf, RefusesWhatWasSaidInAnotherOne) {
  Meeting earlier(terms, terms, PeerKind::kWorker, 10);
  earlier.run();
  ASSERT_TRUE(earlier.both_proven());
  // Replays a recorded client's messages to a server, each at its place.
  auto server = Handshake::of_server(terms, nonce(99));
  std::string_view hello = earlier.said[0];
  std::string_view second = earlier.said[2];
  EXPECT_EQ(server.take(hello), State::kUnderWay);
  EXPECT_EQ(server.take(second), State::kRefused);
  EXPECT_FALSE(server.is_opened());
  server = server_before_proof(nonce(99));
  std::string_view recorded = earlier.said[proof];
  EXPECT_EQ(server.take(recorded), State::kRefused);
  // Replays a recorded server's messages to a client.
  auto client = Handshake::of_client(terms, PeerKind::kWorker, nonce(98));
  std::string_view challenge = earlier.said[1];
  std::string_view welcome = earlier.said[proof + 1];
  if (client.take(challenge) == State::kOpened) client.go_on_under_tls(kBinding);
  EXPECT_EQ(client.take(welcome), State::kRefused);
}

// A stranger without the token sends each end its own messages back, or those of another one.
TEST_P(HandshakeOf, RefusesItsOwnWords) {
  auto client = Handshake::of_client(terms, PeerKind::kWorker, nonce(1));
  const std::string hello = client.to_send();
  std::string_view back = std::string_view(hello).substr(kMagic.size());
  EXPECT_NE(client.take(back), State::kRefused) << "any 32 bytes are a challenge";
  const std::string opening = client.to_send();
  std::string own_proof = opening;
  if (GetParam()) {
    client.go_on_under_tls(kBinding);
    own_proof = client.to_send();
  }
  for (const auto& words : {opening, own_proof}) {
    auto same = client;
    back = std::string_view(words).substr(1);
    EXPECT_EQ(same.take(back), State::kRefused);
  }

  // Two clients of the job: each is presented to the other as a server.
  auto one = Handshake::of_client(terms, PeerKind::kWorker, nonce(2));
  auto other = Handshake::of_client(terms, PeerKind::kWorker, nonce(3));
  const std::string first = one.to_send();
  const std::string of_other = other.to_send();
  back = std::string_view(of_other).substr(kMagic.size());
  (void)one.take(back);
  back = std::string_view(first).substr(kMagic.size());
  (void)other.take(back);
  const std::string opening_of_other = other.to_send();
  if (GetParam()) {
    one.go_on_under_tls(kBinding);
    other.go_on_under_tls(kBinding);
  }
  const std::string proof_of_other = GetParam() ? other.to_send() : opening_of_other;
  for (const auto& words : {opening_of_other, proof_of_other}) {
    auto same = one;
    back = std::string_view(words).substr(1);
    EXPECT_EQ(same.take(back), State::kRefused);
  }
}

// A proof for one purpose proves nothing else, between the same two ends and with the same nonces.
TEST(Handshake, TakesNoAnswerOfOnePhaseInAnother) {
  const auto words = [](bool under_tls) {
    Meeting meeting(under_tls ? kTls : kClear, under_tls ? kTls : kClear);
    meeting.run();
    EXPECT_TRUE(meeting.both_proven());
    return meeting.said;
  };
  const auto clear = words(false);
  const auto tls = words(true);
  // At each place, every proof but the right one.
  const std::vector<std::string> proofs = {
      clear[2], tls[2], tls[3], std::string(1, '\0') + clear[3], std::string(1, '\0') + tls[4]};
  struct Place {
    bool under_tls;
    std::size_t message;
    std::size_t right;
  };
  for (const Place place : {Place{false, 2, 0}, Place{true, 2, 1}, Place{true, 3, 2}}) {
    for (std::size_t given = 0; given < proofs.size(); ++given) {
      Meeting meeting(place.under_tls ? kTls : kClear, place.under_tls ? kTls : kClear);
      meeting.run([&](std::size_t number, std::string& message) {
        if (number == place.message) message = proofs[given];
      });
      EXPECT_EQ(meeting.both_proven(), given == place.right) << place.message << ' ' << given;
      EXPECT_EQ(meeting.server.is_opened(),
                place.under_tls && (place.message > 2 || given == place.right));
    }
  }
}

TEST(Handshake, ProvesTheSameKindBeforeAndUnderTls) {
  Meeting worker(kTls, kTls, PeerKind::kWorker);
  Meeting agent(kTls, kTls, PeerKind::kAgent);
  agent.run();
  worker.run([&](std::size_t number, std::string& message) {
    if (number == 3) message = agent.said[3];
  });
  EXPECT_EQ(worker.server.state(), State::kRefused);
}

TEST_P(HandshakeOf, RefusesMessagesInAnotherOrder) {
  Meeting good(terms, terms);
  good.run();
  for (std::size_t first = 1; first < good.said.size(); ++first) {
    auto server = Handshake::of_server(terms, nonce(2));
    std::string_view bytes = good.said[first];
    EXPECT_EQ(server.take(bytes), State::kRefused) << first;
  }
  auto server = Handshake::of_server(terms, nonce(2));
  std::string_view hello = good.said[0];
  std::string_view again = good.said[0];
  EXPECT_EQ(server.take(hello), State::kUnderWay);
  EXPECT_EQ(server.take(again), State::kRefused) << "a hello for a proof";
}

TEST_P(HandshakeOf, TakesBytesAsTheyComeAndLeavesWhatFollows) {
  Meeting good(terms, terms);
  good.run();
  const std::string all = good.said[1] + good.said[proof + 1] + "frames";
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, all.size()}) {
    auto client = Handshake::of_client(terms, PeerKind::kWorker, nonce(1));
    std::string_view left = all;
    while (client.state() != State::kProven) {
      ASSERT_NE(client.state(), State::kRefused);
      if (client.state() == State::kOpened) client.go_on_under_tls(kBinding);
      std::string_view part = left.substr(0, piece);
      const std::size_t may_take = std::min(part.size(), client.missing());
      const std::size_t before = part.size();
      (void)client.take(part);
      EXPECT_GE(before - part.size(), may_take);
      left.remove_prefix(before - part.size());
    }
    EXPECT_EQ(left, "frames");
  }
}

// The bytes after the opening belong to TLS: the handshake takes none of them.
TEST(Handshake, LeavesWhatIsTlss) {
  Meeting good(kTls, kTls);
  good.run();
  auto server = Handshake::of_server(kTls, nonce(2));
  const std::string all = good.said[0] + good.said[2] + "\x16\x03\x01";
  std::string_view bytes = all;
  EXPECT_EQ(server.take(bytes), State::kOpened);
  EXPECT_EQ(bytes, "\x16\x03\x01");
  EXPECT_EQ(server.take(bytes), State::kOpened);
  EXPECT_EQ(bytes.size(), 3U);
}

TEST_P(HandshakeOf, SendsAStrangerAwayAtItsFirstWrongLetter) {
  const std::vector<std::string> strangers = {"GET / HTTP/1.1", "HFW1", "HX", std::string(1, '\0')};
  for (const auto& text : strangers) {
    auto server = Handshake::of_server(terms, nonce(1));
    std::string_view bytes = text;
    EXPECT_EQ(server.take(bytes), State::kRefused) << text;
    EXPECT_EQ(server.to_send(), "") << "it learns nothing";
    EXPECT_FALSE(has(server.why(), text));
  }
}

TEST(Handshake, NamesTheOtherForm) {
  for (const bool client_tls : {false, true}) {
    Meeting meeting(client_tls ? kTls : kClear, client_tls ? kClear : kTls);
    meeting.run();
    const auto& tls = client_tls ? meeting.server : meeting.client;
    const auto& clear = client_tls ? meeting.client : meeting.server;
    EXPECT_EQ(tls.state(), State::kRefused);
    EXPECT_EQ(clear.state(), State::kRefused);
    EXPECT_TRUE(has(tls.why(), "it speaks TLS, and this process does not")) << tls.why();
    EXPECT_TRUE(has(clear.why(), "it speaks no TLS, and this process does")) << clear.why();
    EXPECT_TRUE(has(clear.why(), "HOLDFAST_TLS_CONFIG"));
    EXPECT_EQ(meeting.said.size(), 2U);
  }
}

TEST_P(HandshakeOf, NamesAnotherRelease) {
  for (const std::string first : {"HFL1", "HFL3", "HFW1", "\x16\x03\x01\x02"}) {
    auto server = Handshake::of_server(terms, nonce(1));
    std::string_view bytes = first;
    EXPECT_EQ(server.take(bytes), State::kRefused);
    EXPECT_TRUE(has(server.why(), "another release of Holdfast")) << server.why();
  }
  // The previous release answered with this alert under TLS, and closed without a word in the
  // clear.
  auto client = Handshake::of_client(terms, PeerKind::kWorker, nonce(1));
  EXPECT_TRUE(has(client.why_closed(), "another release of Holdfast")) << client.why_closed();
  std::string_view alert("\x15\x03\x01\x00\x02\x02\x46", 7);
  EXPECT_EQ(client.take(alert), State::kRefused);
  EXPECT_TRUE(has(client.why(), "another release of Holdfast")) << client.why();
}

TEST(Handshake, DerivesKeysAsRfc5869Does) {
  const std::string token = kToken;
  EVP_KDF* kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* context = EVP_KDF_CTX_new(kdf);
  std::string digest = "SHA256";
  std::string secret = token;
  std::string info = "some purpose";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret.data(), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  std::string key(kMacBytes, '\0');
  EXPECT_EQ(
      EVP_KDF_derive(context, reinterpret_cast<unsigned char*>(key.data()), key.size(), parameters),
      1);
  EVP_KDF_CTX_free(context);
  EVP_KDF_free(kdf);
  EXPECT_EQ(key_for("some purpose", token), key);
  EXPECT_NE(key_for("another purpose", token), key);
}

// No random bytes bring an end to be proven or opened.
TEST_P(HandshakeOf, IsNotProvenByChance) {
  Prng prng(7);
  Meeting good(terms, terms);
  good.run();
  for (int round = 0; round < 20'000; ++round) {
    const bool is_server = prng.below(2) == 0;
    auto end = is_server ? Handshake::of_server(terms, nonce(1000))
                         : Handshake::of_client(terms, PeerKind::kWorker, nonce(1000));
    std::string bytes;
    for (int part = 0; part < 4; ++part) {
      const auto which = prng.below(good.said.size() + 1);
      if (which < good.said.size()) {
        bytes += good.said[which].substr(0, prng.below(good.said[which].size() + 1));
      } else {
        for (auto size = prng.below(70); size > 0; --size) {
          bytes += static_cast<char>(prng.below(256));
        }
      }
    }
    std::string_view left = bytes;
    if (end.take(left) == State::kOpened && !is_server) end.go_on_under_tls(kBinding);
    EXPECT_NE(end.take(left), State::kProven);
    EXPECT_FALSE(end.is_opened());
  }
}

Terms with_problem(const char* problem) {
  auto terms = kTls;
  terms.problem = problem;
  return terms;
}

// ---- Complaints ---------------------------------------------------------------------------------

TEST(Handshake, TellsThePeerWhyThisEndCanNotBeginTls) {
  const std::string words = "it can not begin TLS: wrong password";
  Meeting client(with_problem("wrong password"), kTls, PeerKind::kAgent);
  client.run();
  EXPECT_EQ(client.server.why(), words);
  EXPECT_EQ(client.client.why(), "this process can not begin TLS: wrong password");
  EXPECT_TRUE(client.server.is_opened()) << "no stranger";
  Meeting server(kTls, with_problem("wrong password"));
  server.run();
  EXPECT_EQ(server.client.why(), words);
  EXPECT_EQ(server.server.why(), "this process can not begin TLS: wrong password");
  Meeting both(with_problem("of the client"), with_problem("of the server"));
  both.run();
  EXPECT_EQ(both.server.why(), "it can not begin TLS: of the client");
  EXPECT_EQ(both.client.why(), "this process can not begin TLS: of the client");
}

TEST(Handshake, TellsNoStrangerWhatItsProblemIs) {
  auto other = kTls;
  other.token = "another token";
  for (const auto& stranger : {other, with_problem("mine")}) {
    auto without_token = stranger;
    without_token.token = other.token;
    Meeting meeting(without_token, with_problem("a secret"));
    meeting.run();
    for (const auto& message : meeting.said) EXPECT_FALSE(has(message, "secret"));
    EXPECT_FALSE(meeting.server.is_opened());
    EXPECT_FALSE(has(meeting.server.why(), "mine")) << "nor believes a stranger's";
  }
}

TEST(Handshake, BelievesNoComplaintThatIsChangedOrIsAnOldOne) {
  for (const bool of_client : {true, false}) {
    const auto problem = with_problem("wrong password");
    const auto& left = of_client ? problem : kTls;
    const auto& right = of_client ? kTls : problem;
    Meeting good(left, right);
    good.run();
    const std::size_t which = good.said.size() - 1;
    for (std::size_t bit = 0; bit < good.said[which].size() * 8; ++bit) {
      Meeting meeting(left, right);
      meeting.run([&](std::size_t number, std::string& message) {
        if (number == which)
          message[bit / 8] = static_cast<char>(message[bit / 8] ^ (1 << bit % 8));
      });
      const auto& hearer = of_client ? meeting.server : meeting.client;
      EXPECT_FALSE(has(hearer.why(), "password")) << bit;
      EXPECT_NE(hearer.state(), State::kProven);
      EXPECT_NE(hearer.state(), State::kOpened);
    }
    Meeting later(left, right, PeerKind::kWorker, 10);
    later.run([&](std::size_t number, std::string& message) {
      if (number == which) message = good.said[which];
    });
    EXPECT_FALSE(has((of_client ? later.server : later.client).why(), "password"));
  }
}

TEST(Handshake, ComplainsInOneShortPrintableSentence) {
  const std::string longest(kLongestProblem, 'x');
  Meeting meeting(with_problem(("\n\x1b[31m" + longest).c_str()), kTls);
  meeting.run();
  EXPECT_EQ(meeting.server.why(),
            "it can not begin TLS: ??[31m" + longest.substr(0, kLongestProblem - 6));
}

}  // namespace
}  // namespace holdfast::link
