// Streams between peers: handed over as they are, in the clear and under TLS, and to peers alone.
#include "io/peer_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "io/testing.h"
#include "tls/testing/papers.h"

namespace holdfast::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Outcome = Stream::Outcome;

Membership peers(std::shared_ptr<tls::Context> tls = nullptr) {
  return {.job = "job", .token = kToken, .kind = wire::PeerKind::kPeer, .tls = std::move(tls)};
}

// Writes `bytes`, until the stream is over at most. Returns whether all are written.
bool say(PeerStream& to, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto [outcome, count] = to.stream().write(bytes);
    if (outcome == Outcome::kDone) {
      bytes.remove_prefix(count);
      continue;
    }
    if (outcome != Outcome::kWantsToWrite) return false;
    pollfd one{.fd = to.descriptor(), .events = POLLOUT, .revents = 0};
    if (::poll(&one, 1, 10'000) != 1) return false;
  }
  return true;
}

// Reads `size` bytes, or fewer if the stream is over.
std::string hear(PeerStream& from, std::size_t size) {
  std::string heard(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const auto [outcome, count] = from.stream().read(std::span(heard).subspan(have));
    if (outcome == Outcome::kDone) {
      have += count;
      continue;
    }
    pollfd one{.fd = from.descriptor(), .events = POLLIN, .revents = 0};
    if (outcome != Outcome::kWantsToRead || ::poll(&one, 1, 10'000) != 1) break;
  }
  heard.resize(have);
  return heard;
}

class PeerStreamTest : public testing::Test {
 protected:
  void serve(Membership membership = peers()) {
    listener_ = *listen(loop, "127.0.0.1", 0);
    listener_->serve({.membership = std::move(membership),
                      .on_accept = nullptr,
                      .on_refused =
                          [this](const std::string&, const std::string& why) {
                            refused = why;
                            stop_when(there || !error.empty());
                          },
                      .on_stream =
                          [this](PeerStream stream) {
                            here = std::move(stream);
                            stop_when(there || !error.empty());
                          }});
  }

  // Connects the two ends, and waits until both know the result.
  void meet(Membership membership = peers()) {
    connect_stream(loop, "127.0.0.1", listener_->port(), std::move(membership), seconds(30),
                   [this](Result<PeerStream> made) {
                     if (made) there = *std::move(made);
                     error = made ? "" : made.error().what;
                     stop_when(here || !refused.empty());
                   });
    run_to_stop(loop);
  }
  void stop_when(bool condition) {
    if (condition) loop.stop();
  }

  Loop loop;
  std::unique_ptr<Listener> listener_;
  std::optional<PeerStream> here;
  std::optional<PeerStream> there;
  std::string refused;
  std::string error;
};

TEST_F(PeerStreamTest, CarriesBytesBothWaysWithoutTheLoop) {
  serve();
  meet();
  ASSERT_TRUE(here && there) << error << " / " << refused;
  ASSERT_TRUE(say(*here, "to there") && say(*there, "to here"));
  EXPECT_EQ(hear(*there, 8), "to there");
  EXPECT_EQ(hear(*here, 7), "to here");
  for (const auto* end : {&*here, &*there}) {
    int alive = 0;
    socklen_t size = sizeof alive;
    ASSERT_EQ(::getsockopt(end->descriptor(), SOL_SOCKET, SO_KEEPALIVE, &alive, &size), 0);
    EXPECT_EQ(alive, 1);
  }
}

TEST_F(PeerStreamTest, CarriesBytesUnderTlsByTheCertificatesOfClientsAlone) {
  const tls::Papers papers;
  const auto context = *papers.context(tls::Role::kClient);
  serve(peers(context));
  meet(peers(context));
  ASSERT_TRUE(here && there) << error << " / " << refused;
  ASSERT_TRUE(here->stream().is_under_tls());
  ASSERT_TRUE(say(*here, "to there") && say(*there, "to here"));
  EXPECT_EQ(hear(*there, 8), "to there");
  EXPECT_EQ(hear(*here, 7), "to here");
}

TEST_F(PeerStreamTest, UnderTlsTakesNobodyOfAnotherAuthority) {
  const tls::Papers papers;
  const tls::Papers others("another");
  serve(peers(*papers.context(tls::Role::kClient)));
  meet(peers(*others.context(tls::Role::kClient)));
  EXPECT_FALSE(here || there);
  EXPECT_NE(refused.find("certificate"), std::string::npos) << refused;
  EXPECT_NE(error.find("certificate"), std::string::npos) << error;
}

// The other end's certificate is a server's, so that end is no worker.
TEST_F(PeerStreamTest, UnderTlsTakesNoServerForAPeer) {
  tls::Papers papers;
  const auto scheduler = *papers.context(tls::Role::kServer);
  serve({.job = "job", .token = kToken, .tls = scheduler});
  meet(peers(*papers.context(tls::Role::kClient)));
  EXPECT_FALSE(here || there);
  EXPECT_NE(error.find("certificate"), std::string::npos) << error;
}

TEST_F(PeerStreamTest, RefusesWhoIsNoPeer) {
  for (const auto kind :
       {wire::PeerKind::kWorker, wire::PeerKind::kAgent, wire::PeerKind::kObserver}) {
    serve();
    refused.clear();
    there.reset();
    auto membership = peers();
    membership.kind = kind;
    meet(membership);
    EXPECT_FALSE(here);
    EXPECT_NE(refused.find(cat("of kind '", wire::name(kind), "'")), std::string::npos) << refused;
    ASSERT_TRUE(there) << "it learns of it when it reads: " << error;
    EXPECT_EQ(hear(*there, 1), "");
  }
}

TEST_F(PeerStreamTest, RefusesAnotherToken) {
  serve();
  auto membership = peers();
  membership.token = link::Token("another token");
  meet(membership);
  EXPECT_FALSE(here || there);
  EXPECT_NE(refused.find("another token"), std::string::npos) << refused;
  EXPECT_NE(error.find("did not accept this process"), std::string::npos) << error;
}

TEST_F(PeerStreamTest, SaysThatAWorkerWasLookedFor) {
  const os::Fd silent = os::listening_at(0, 8);
  connect_stream(loop, "127.0.0.1", os::port_of(silent), peers(), milliseconds(200),
                 [&](const Result<PeerStream>& made) {
                   ASSERT_FALSE(made);
                   error = made.error().what;
                   loop.stop();
                 });
  run_to_stop(loop);
  EXPECT_NE(error.find("does not answer as a worker does"), std::string::npos) << error;
}

TEST_F(PeerStreamTest, ACutWakesTheOtherEnd) {
  serve();
  meet();
  ASSERT_TRUE(here && there) << error << " / " << refused;
  there->cut();
  EXPECT_EQ(hear(*here, 1), "");
  EXPECT_EQ(there->stream().read(std::span(error = "x")).outcome, Outcome::kEnd);
}

TEST_F(PeerStreamTest, ReadsTheFirstWordAndNotAByteMore) {
  const tls::Papers papers;
  const auto context = *papers.context(tls::Role::kClient);
  for (const bool under_tls : {false, true}) {
    const auto membership = peers(under_tls ? context : nullptr);
    here.reset();
    there.reset();
    serve(membership);
    meet(membership);
    ASSERT_TRUE(here && there) << error << " / " << refused;
    std::optional<FirstWord> word;
    // The first letter says how long the word is.
    const auto missing = [](std::string_view so_far) {
      return so_far.empty() ? 1 : static_cast<std::size_t>(so_far[0] - '0') + 1 - so_far.size();
    };
    read_first_word(loop, *std::move(here), missing, seconds(30), [&](Result<FirstWord> read) {
      ASSERT_TRUE(read) << read.error().what;
      word = *std::move(read);
      loop.stop();
    });
    // In two pieces, while the loop waits.
    ASSERT_TRUE(say(*there, "5he"));
    loop.post([&] { ASSERT_TRUE(say(*there, "llo, and more")); });
    run_to_stop(loop);
    ASSERT_TRUE(word);
    EXPECT_EQ(word->word, "5hello");
    EXPECT_EQ(hear(word->stream, 10), ", and more");
  }
}

TEST_F(PeerStreamTest, WaitsForNoFirstWordForEver) {
  serve();
  meet();
  ASSERT_TRUE(here && there) << error << " / " << refused;
  const auto one = [](std::string_view so_far) { return 1 - so_far.size(); };
  read_first_word(loop, *std::move(here), one, milliseconds(100), [&](Result<FirstWord> read) {
    ASSERT_FALSE(read);
    error = read.error().what;
    loop.stop();
  });
  run_to_stop(loop);
  EXPECT_NE(error.find("has not said in time"), std::string::npos) << error;
  EXPECT_EQ(hear(*there, 1), "") << "it is closed";
}

TEST_F(PeerStreamTest, SaysWhoGoesWithoutAWord) {
  serve();
  meet();
  ASSERT_TRUE(here && there) << error << " / " << refused;
  const auto one = [](std::string_view so_far) { return 1 - so_far.size(); };
  read_first_word(loop, *std::move(here), one, seconds(30), [&](Result<FirstWord> read) {
    ASSERT_FALSE(read);
    error = read.error().what;
    loop.stop();
  });
  there.reset();
  run_to_stop(loop);
  EXPECT_NE(error.find("without a word"), std::string::npos) << error;
}

}  // namespace
}  // namespace holdfast::io
