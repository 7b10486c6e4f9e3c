// The door of a listening port: peers that do not belong to the job.
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/connection.h"
#include "io/testing.h"
#include "os/fd.h"
#include "os/testing.h"

namespace holdfast::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Pointer = std::shared_ptr<Connection>;

// A listener, and what it has met.
class DoorTest : public testing::Test {
 protected:
  void serve(Door door = {}) {
    listener_ = *listen(loop, "127.0.0.1", 0);
    listener_->serve({.membership = kMembership,
                      .on_accept =
                          [this](const Pointer& connection, wire::PeerKind kind) {
                            accepted.push_back(connection);
                            kinds.push_back(kind);
                            connection->start({[](const wire::Message&) {}, [](const Error&) {}});
                          },
                      .on_refused =
                          [this](const std::string& peer, const std::string& why) {
                            refused.push_back(cat(peer, ": ", why));
                            after_refusal();
                          },
                      .door = door});
  }

  os::Fd stranger(std::string_view bytes = "") { return stranger_at(listener_->port(), bytes); }

  // All that a stranger hears, until its connection is closed.
  static std::string heard_by(const os::Fd& raw) {
    std::string all;
    char block[256];
    for (ssize_t got = 0; (got = ::recv(raw.get(), block, sizeof block, 0)) > 0;) {
      all.append(block, static_cast<std::size_t>(got));
    }
    return all;
  }

  // Connects, and stops the loop with the result.
  void connect_and_stop(const Membership& membership) {
    connect(loop, "127.0.0.1", listener_->port(), membership, seconds(30),
            [this](Result<Pointer> made) {
              error = made ? "" : made.error().what;
              if (made) connected.push_back(*made);
              loop.stop();
            });
    run_to_stop(loop);
  }

  Loop loop;
  std::unique_ptr<Listener> listener_;
  std::vector<Pointer> accepted;
  std::vector<wire::PeerKind> kinds;
  std::vector<std::string> refused;
  std::function<void()> after_refusal = [] {};
  std::vector<Pointer> connected;
  std::string error;
};

TEST_F(DoorTest, LetsInWhoBelongsToTheJobAndKnowsWhatItIs) {
  serve();
  for (const auto kind :
       {wire::PeerKind::kWorker, wire::PeerKind::kAgent, wire::PeerKind::kObserver}) {
    Membership membership = kMembership;
    membership.kind = kind;
    connect_and_stop(membership);
    ASSERT_EQ(error, "");
    EXPECT_EQ(kinds.back(), kind);
  }
  EXPECT_TRUE(refused.empty());
}

TEST_F(DoorTest, NamesAnotherTokenAndAnotherJobOnBothSides) {
  serve();
  after_refusal = [&] { loop.stop(); };
  for (const auto& other : {Membership{.job = "job", .token = "another"},
                            Membership{.job = "other", .token = kMembership.token}}) {
    connect_and_stop(other);
    if (error.empty()) run_to_stop(loop);
    EXPECT_NE(error.find("did not accept this process"), std::string::npos) << error;
    EXPECT_NE(error.find(cat("127.0.0.1:", listener_->port())), std::string::npos) << error;
    error.clear();
  }
  ASSERT_EQ(refused.size(), 2U);
  for (const auto& text : refused) {
    EXPECT_NE(text.find("HOLDFAST_TOKEN_FILE"), std::string::npos) << text;
    EXPECT_EQ(text.find(kToken), std::string::npos) << text;
  }
  EXPECT_TRUE(accepted.empty());
}

TEST_F(DoorTest, TellsAStrangerNothing) {
  serve();
  after_refusal = [&] { loop.stop(); };
  const os::Fd raw = stranger("GET / HTTP/1.1\r\n\r\n");
  run_to_stop(loop);
  EXPECT_EQ(heard_by(raw), "");
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].find("GET"), std::string::npos) << refused[0];
}

TEST_F(DoorTest, SendsAwayWhoSaysNothing) {
  serve({.patience = milliseconds(50)});
  after_refusal = [&] { loop.stop(); };
  const os::Fd silent = stranger();
  run_to_stop(loop);
  EXPECT_EQ(heard_by(silent), "");
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_NE(refused[0].find("in time"), std::string::npos);
}

TEST_F(DoorTest, IsNotBlockedByThoseWhoSayNothing) {
  serve({.most = 8, .patience = seconds(3600)});
  std::vector<os::Fd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(stranger(i % 2 == 0 ? "" : "HFL2"));
  const Instant begin = Loop::now();
  connect_and_stop(kMembership);
  EXPECT_EQ(error, "");
  ASSERT_EQ(accepted.size(), 1U);
  EXPECT_GE(refused.size(), 190U);
  EXPECT_LT(Loop::now() - begin, seconds(15)) << "8 at a time, 0.1 s each; the rest is a busy host";
  EXPECT_EQ(heard_by(silent.front()), "") << "it is closed";
  // Connections that are proven do not count.
  for (int i = 0; i < 20; ++i) {
    connect_and_stop(kMembership);
    ASSERT_EQ(error, "");
  }
  EXPECT_TRUE(accepted.front()->is_open());
}

// These strangers send one letter after the other.
TEST_F(DoorTest, IsNotBlockedByThoseWhoSayAlmostNothing) {
  serve({.most = 8, .patience = seconds(3600)});
  std::vector<os::Fd> slow;
  for (int i = 0; i < 8; ++i) slow.push_back(stranger("HFL2c"));
  std::function<void()> drip = [&] {
    for (const auto& one : slow) (void)::send(one.get(), "x", 1, MSG_NOSIGNAL);
    loop.after(milliseconds(80), drip);
  };
  drip();
  const Instant begin = Loop::now();
  connect_and_stop(kMembership);
  EXPECT_EQ(error, "");
  EXPECT_EQ(accepted.size(), 1U);
  // The strangers' letters would last for more than 5 s.
  EXPECT_LT(Loop::now() - begin, seconds(4));
}

// The port is taken at a name's first address: another process's clients would come to this one.
TEST(Listen, DoesNotTakeTheSecondAddressWhereTheFirstIsTaken) {
  Loop loop;
  const auto first = listen(loop, "localhost", 0);
  ASSERT_TRUE(first) << first.error().what;
  EXPECT_FALSE(listen(loop, "localhost", (*first)->port()));
}

TEST_F(DoorTest, GivesUpOnAServerThatSaysNothing) {
  listener_ = *listen(loop, "127.0.0.1", 0);  // The listener serves nobody.
  connect(loop, "127.0.0.1", listener_->port(), kMembership, milliseconds(100),
          [this](Result<Pointer> made) {
            error = made ? "" : made.error().what;
            loop.stop();
          });
  run_to_stop(loop);
  EXPECT_NE(error.find("does not answer as a scheduler does"), std::string::npos) << error;
}

// The leak checker tells whether anything is left. (It has found this error.)
TEST(Connect, GoesWithItsLoopInTheMidstOfAProof) {
  Loop server;
  const auto listener = *listen(server, "127.0.0.1", 0);  // The listener serves nobody.
  Loop loop;
  connect(loop, "127.0.0.1", listener->port(), kMembership, seconds(30), [](Result<Pointer>) {});
  loop.after(milliseconds(50), [&] { loop.stop(); });
  run_to_stop(loop);
}

TEST_F(DoorTest, KnowsAServerThatIsNoneOfTheJob) {
  // The server sends 65 bytes, as many as a challenge and a welcome have.
  const os::Fd server = os::listening_at(0, 1);
  os::Fd taken;
  connect(loop, "127.0.0.1", os::port_of(server), kMembership, seconds(30),
          [this](Result<Pointer> made) {
            error = made ? "" : made.error().what;
            loop.stop();
          });
  loop.after(milliseconds(1), [&] {
    taken.reset(::accept(server.get(), nullptr, nullptr));
    const std::string nonsense(65, 'c');
    EXPECT_EQ(::send(taken.get(), nonsense.data(), nonsense.size(), 0), 65);
  });
  run_to_stop(loop);
  EXPECT_NE(error.find("another token"), std::string::npos) << error;
}

}  // namespace
}  // namespace holdfast::io
