#include "link/handshake.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/text.h"

namespace holdfast::link {
namespace {

using State = Handshake::State;
using wire::PeerKind;

const Terms kTerms{.job = "job", .token = "a token that nobody knows", .binding = ""};

Nonce nonce(std::uint64_t seed) {
  Prng prng(seed);
  Nonce made;
  for (auto& byte : made) byte = static_cast<char>(prng.below(256));
  return made;
}

// Two ends and the messages between them, in order: hello, challenge, proof, welcome.
struct Meeting {
  Handshake client;
  Handshake server;
  std::vector<std::string> said;

  Meeting(const Terms& of_client, const Terms& of_server, PeerKind kind = PeerKind::kWorker,
          std::uint64_t seed = 1)
      : client(Handshake::of_client(of_client, kind, nonce(seed))),
        server(Handshake::of_server(of_server, nonce(seed + 1))) {}

  // Until nobody has anything to say. `change` may change each message on its way.
  template <class Change>
  void run(Change change) {
    for (bool from_client = true;; from_client = !from_client) {
      std::string message = (from_client ? client : server).to_send();
      if (message.empty()) return;
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

TEST(Handshake, ProvesBothEndsAndWhatTheClientIs) {
  for (const auto kind : {PeerKind::kWorker, PeerKind::kAgent, PeerKind::kObserver}) {
    Meeting meeting(kTerms, kTerms, kind);
    meeting.run();
    EXPECT_TRUE(meeting.both_proven());
    EXPECT_EQ(meeting.server.kind(), kind);
    EXPECT_EQ(meeting.said.size(), 4U);
  }
}

TEST(Handshake, NeedsTheSameTokenJobAndConnection) {
  const std::vector<Terms> others = {{.job = "job", .token = "another token", .binding = ""},
                                     {.job = "job2", .token = kTerms.token, .binding = ""},
                                     {.job = "", .token = kTerms.token, .binding = ""},
                                     {.job = "job", .token = "", .binding = ""},
                                     {.job = "job", .token = kTerms.token, .binding = "a"}};
  for (const auto& other : others) {
    Meeting meeting(other, kTerms);
    meeting.run();
    EXPECT_EQ(meeting.server.state(), State::kRefused);
    EXPECT_EQ(meeting.client.state(), State::kUnderWay) << "it is told nothing";
    EXPECT_NE(meeting.server.why().find("HOLDFAST_TOKEN_FILE"), std::string::npos);
    EXPECT_NE(meeting.client.why_closed().find("did not accept this process"), std::string::npos);
  }
}

TEST(Handshake, FieldsCannotRunIntoOneAnother) {
  Meeting meeting({.job = "jo", .token = "t", .binding = "b"},
                  {.job = "j", .token = "t", .binding = "ob"});
  meeting.run();
  EXPECT_EQ(meeting.server.state(), State::kRefused);
}

// Every bit of every message counts, and no message is needed that is not there.
TEST(Handshake, RefusesEveryMessageThatIsChanged) {
  Meeting good(kTerms, kTerms);
  good.run();
  for (std::size_t which = 0; which < good.said.size(); ++which) {
    for (std::size_t bit = 0; bit < good.said[which].size() * 8; ++bit) {
      Meeting meeting(kTerms, kTerms);
      meeting.run([&](std::size_t number, std::string& message) {
        if (number == which)
          message[bit / 8] = static_cast<char>(message[bit / 8] ^ (1 << bit % 8));
      });
      EXPECT_FALSE(meeting.both_proven()) << which << ' ' << bit;
    }
    Meeting meeting(kTerms, kTerms);
    meeting.run([&](std::size_t number, std::string& message) {
      if (number == which) message.pop_back();
    });
    EXPECT_FALSE(meeting.both_proven()) << "cut: " << which;
  }
}

TEST(Handshake, RefusesWhatWasSaidInAnotherOne) {
  Meeting earlier(kTerms, kTerms, PeerKind::kAgent, 10);
  earlier.run();
  ASSERT_TRUE(earlier.both_proven());
  // A recorded client to a server, and a recorded server to a client.
  auto server = Handshake::of_server(kTerms, nonce(99));
  std::string_view hello = earlier.said[0];
  std::string_view proof = earlier.said[2];
  EXPECT_EQ(server.take(hello), State::kUnderWay);
  EXPECT_EQ(server.take(proof), State::kRefused);
  auto client = Handshake::of_client(kTerms, PeerKind::kAgent, nonce(98));
  std::string_view challenge = earlier.said[1];
  std::string_view welcome = earlier.said[3];
  EXPECT_EQ(client.take(challenge), State::kUnderWay);
  EXPECT_EQ(client.take(welcome), State::kRefused);
}

// Somebody without the token sends each end back what it says itself, or what another one says.
TEST(Handshake, RefusesItsOwnWords) {
  auto client = Handshake::of_client(kTerms, PeerKind::kWorker, nonce(1));
  const std::string hello = client.to_send();
  std::string_view back = std::string_view(hello).substr(kMagic.size());
  EXPECT_EQ(client.take(back), State::kUnderWay) << "any 32 bytes are a challenge";
  const std::string proof = client.to_send();
  back = std::string_view(proof).substr(1);
  EXPECT_EQ(client.take(back), State::kRefused);

  // Two clients of the job, each taken for the other's server.
  auto one = Handshake::of_client(kTerms, PeerKind::kWorker, nonce(2));
  auto other = Handshake::of_client(kTerms, PeerKind::kWorker, nonce(3));
  const std::string first = one.to_send();
  const std::string second = other.to_send();
  back = std::string_view(second).substr(kMagic.size());
  (void)one.take(back);
  back = std::string_view(first).substr(kMagic.size());
  (void)other.take(back);
  const std::string proof_of_one = one.to_send();
  const std::string proof_of_other = other.to_send();
  back = std::string_view(proof_of_one).substr(1);
  EXPECT_EQ(other.take(back), State::kRefused);
  back = std::string_view(proof_of_other).substr(1);
  EXPECT_EQ(one.take(back), State::kRefused);
}

TEST(Handshake, RefusesMessagesInAnotherOrder) {
  Meeting good(kTerms, kTerms);
  good.run();
  auto server = Handshake::of_server(kTerms, nonce(2));
  std::string_view proof = good.said[2];
  EXPECT_EQ(server.take(proof), State::kRefused) << "a proof first";
  server = Handshake::of_server(kTerms, nonce(2));
  std::string_view hello = good.said[0];
  std::string_view again = good.said[0];
  EXPECT_EQ(server.take(hello), State::kUnderWay);
  EXPECT_EQ(server.take(again), State::kRefused) << "a hello for a proof";
}

TEST(Handshake, TakesBytesAsTheyComeAndLeavesWhatFollows) {
  Meeting good(kTerms, kTerms);
  good.run();
  auto client = Handshake::of_client(kTerms, PeerKind::kWorker, nonce(1));
  const std::string all = good.said[1] + good.said[3] + "frames";
  std::string_view left;
  for (std::size_t size = 1; size <= all.size() && client.state() == State::kUnderWay; ++size) {
    left = std::string_view(all).substr(size - 1, 1);
    (void)client.take(left);
    EXPECT_TRUE(left.empty());
  }
  EXPECT_EQ(client.state(), State::kProven);
  client = Handshake::of_client(kTerms, PeerKind::kWorker, nonce(1));
  left = all;
  EXPECT_EQ(client.take(left), State::kProven);
  EXPECT_EQ(left, "frames");
}

TEST(Handshake, SendsAStrangerAwayAtItsFirstWrongLetter) {
  const std::vector<std::string> strangers = {"GET / HTTP/1.1", "HFW1", "HX", std::string(1, '\0')};
  for (const auto& text : strangers) {
    auto server = Handshake::of_server(kTerms, nonce(1));
    std::string_view bytes = text;
    EXPECT_EQ(server.take(bytes), State::kRefused) << text;
    EXPECT_EQ(server.to_send(), "") << "it learns nothing";
    EXPECT_EQ(server.why().find(text), std::string::npos);
  }
}

TEST(Handshake, NamesAnEndThatSpeaksTls) {
  auto server = Handshake::of_server(kTerms, nonce(1));
  std::string_view hello("\x16\x03\x01\x02", 4);
  EXPECT_EQ(server.take(hello), State::kRefused);
  EXPECT_NE(server.why().find("HOLDFAST_TLS_CONFIG"), std::string::npos) << server.why();
  auto client = Handshake::of_client(kTerms, PeerKind::kWorker, nonce(1));
  std::string_view alert("\x15\x03\x01\x00\x02\x02\x46", 7);
  EXPECT_EQ(client.take(alert), State::kUnderWay);
  EXPECT_NE(client.why_closed().find("HOLDFAST_TLS_CONFIG"), std::string::npos);
}

// Whatever bytes come, an end without the right ones never comes to be proven, and holds little.
TEST(Handshake, IsNotProvenByChance) {
  Prng prng(7);
  Meeting good(kTerms, kTerms);
  good.run();
  for (int round = 0; round < 20'000; ++round) {
    const bool is_server = prng.below(2) == 0;
    auto end = is_server ? Handshake::of_server(kTerms, nonce(1000))
                         : Handshake::of_client(kTerms, PeerKind::kWorker, nonce(1000));
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
    EXPECT_NE(end.take(left), State::kProven);
  }
}

}  // namespace
}  // namespace holdfast::link
