#include "io/connection.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/testing.h"
#include "link/handshake.h"
#include "os/fd.h"
#include "os/testing.h"
#include "wire/frame.h"

namespace holdfast::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Pointer = std::shared_ptr<Connection>;

// One end of a connection, and what it has seen.
struct End {
  Pointer connection;
  std::vector<wire::Message> messages;
  std::vector<Error> closed;
  std::function<void()> after_message = [] {};
  std::function<void()> after_closed = [] {};
  std::vector<Error> unreadable;
  std::function<void()> after_unreadable;  // Empty: the handler on_unreadable is not set.

  void start() {
    Connection::Handlers handlers{.on_message =
                                      [this](wire::Message message) {
                                        messages.push_back(std::move(message));
                                        after_message();
                                      },
                                  .on_closed =
                                      [this](Error why) {
                                        closed.push_back(std::move(why));
                                        after_closed();
                                      }};
    if (after_unreadable) {
      handlers.on_unreadable = [this](const Error& why) {
        unreadable.push_back(why);
        after_unreadable();
      };
    }
    connection->start(std::move(handlers));
  }
};

// A loop with a listener; `here` is the accepted end, `there` the connecting one.
class ConnectionTest : public testing::Test {
 protected:
  void listen_here(ConnectionOptions options = {}) {
    auto listener = listen(loop, "127.0.0.1", 0);
    ASSERT_TRUE(listener) << listener.error().what;
    listener_ = std::move(*listener);
    listener_->serve({.membership = kMembership,
                      .on_accept =
                          [this](Pointer connection, wire::PeerKind) {
                            here.connection = std::move(connection);
                            if (there.connection != nullptr || raw) loop.stop();
                          },
                      .connection = options});
    ASSERT_NE(listener_->port(), 0);
  }

  void make_pair(ConnectionOptions options = {}) {
    listen_here(options);
    connect(
        loop, "127.0.0.1", listener_->port(), kMembership, seconds(30),
        [this](Result<Pointer> result) {
          ASSERT_TRUE(result) << result.error().what;
          there.connection = *result;
          if (here.connection != nullptr) loop.stop();
        },
        options);
    run_to_stop(loop);
  }

  // The other end is a bare socket of the test.
  void make_raw_pair(ConnectionOptions options = {}) {
    listen_here(options);
    raw.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 4096;
    ::setsockopt(raw.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    const auto address = os::loopback(listener_->port());
    ASSERT_EQ(::connect(raw.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    std::thread proves([this] {
      auto handshake =
          link::Handshake::of_client({kMembership.job, kMembership.token}, kMembership.kind, {});
      std::array<char, 128> block;
      while (handshake.state() == link::Handshake::State::kUnderWay) {
        write_raw(handshake.to_send());
        const ssize_t got = ::recv(raw.get(), block.data(), block.size(), 0);
        ASSERT_GT(got, 0);
        std::string_view bytes(block.data(), static_cast<std::size_t>(got));
        handshake.take(bytes);
      }
    });
    run_to_stop(loop);
    proves.join();
  }

  void write_raw(std::string_view bytes) {
    ASSERT_EQ(::send(raw.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }

  void reset_raw() {
    const linger hard{1, 0};
    ::setsockopt(raw.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    raw.reset();
  }

  Loop loop;
  std::unique_ptr<Listener> listener_;
  os::Fd raw;
  End here;
  End there;
};

TEST_F(ConnectionTest, BringsMessagesBothWaysInOrder) {
  make_pair();
  constexpr std::uint64_t kMany = 2000;
  here.after_message = [&] { here.connection->send(here.messages.back()); };
  there.after_message = [&] {
    if (there.messages.size() == kMany) loop.stop();
  };
  here.start();
  there.start();
  for (std::uint64_t i = 0; i < kMany; ++i) there.connection->send(wire::Repaired{i});
  run_to_stop(loop);
  ASSERT_EQ(there.messages.size(), kMany);
  for (std::uint64_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(there.messages[i], wire::Message(wire::Repaired{i}));
  }
}

TEST_F(ConnectionTest, BringsTheLargestMessage) {
  make_pair();
  const wire::Message big = wire::StatusReply{std::string(wire::kMaxBodyBytes - 5, 'x')};
  here.after_message = [&] { loop.stop(); };
  here.start();
  there.start();
  there.connection->send(big);
  run_to_stop(loop);
  ASSERT_EQ(here.messages.size(), 1U);
  EXPECT_TRUE(here.messages[0] == big);
}

TEST_F(ConnectionTest, SetsWhatALostPeerIsFoundBy) {
  make_pair({.silence_limit = milliseconds(4321)});
  for (const auto* end : {&here, &there}) {
    const int fd = end->connection->descriptor();
    const auto option = [&](int level, int name) {
      int value = -1;
      socklen_t size = sizeof(value);
      ::getsockopt(fd, level, name, &value, &size);
      return value;
    };
    EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 1);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 4321);
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_EQ(there.connection->peer(), cat("127.0.0.1:", listener_->port()));
}

TEST_F(ConnectionTest, BlamesAPeerThatSendsGarbage) {
  make_raw_pair();
  here.after_closed = [&] { loop.stop(); };
  here.start();
  write_raw("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
  run_to_stop(loop);
  ASSERT_EQ(here.closed.size(), 1U);
  EXPECT_EQ(here.closed[0].blame, Blame::kPeer);
  EXPECT_NE(here.closed[0].what.find("127.0.0.1:"), std::string::npos) << here.closed[0].what;
  EXPECT_FALSE(here.connection->is_open());
  EXPECT_TRUE(here.messages.empty());
}

TEST_F(ConnectionTest, GivesTheMessagesBeforeTheGarbage) {
  make_raw_pair();
  here.after_closed = [&] { loop.stop(); };
  here.start();
  write_raw(wire::frame(wire::Heartbeat{}) + wire::frame(wire::Repaired{7}) + std::string(16, 'x'));
  run_to_stop(loop);
  EXPECT_EQ(here.messages, (std::vector<wire::Message>{wire::Heartbeat{}, wire::Repaired{7}}));
  EXPECT_EQ(here.closed.size(), 1U);
}

// An unreadable message is one of another version, so its sender may still be told why.
TEST_F(ConnectionTest, MayAnswerWhatCanNotBeRead) {
  make_pair();
  const wire::Waiting unknown{{.kind = static_cast<wire::Reason::Kind>(250)}};
  here.after_unreadable = [&] { here.connection->send(wire::Repaired{7}); };
  there.after_message = [&] {  // `here` reads nothing any more, but notices the end of `there`.
    there.connection->send(wire::Repaired{8});
    there.connection->close();
  };
  here.after_closed = [&] { loop.stop(); };
  here.start();
  there.start();
  there.connection->send(wire::Repaired{6});
  there.connection->send(unknown);
  run_to_stop(loop);
  EXPECT_EQ(here.messages, std::vector<wire::Message>{wire::Repaired{6}});
  ASSERT_EQ(here.unreadable.size(), 1U);
  EXPECT_NE(here.unreadable[0].what.find("127.0.0.1:"), std::string::npos);
  EXPECT_NE(here.unreadable[0].what.find("a malformed Waiting; use the same version of Holdfast"),
            std::string::npos)
      << here.unreadable[0].what;
  EXPECT_EQ(there.messages, std::vector<wire::Message>{wire::Repaired{7}});
}

TEST_F(ConnectionTest, DamageEndsTheConnectionAndIsNotThePeersWord) {
  make_raw_pair();
  here.after_unreadable = [&] { ADD_FAILURE(); };
  here.after_closed = [&] { loop.stop(); };
  here.start();
  std::string damaged = wire::frame(wire::Repaired{7});
  damaged.back() ^= 1;
  write_raw(damaged);
  run_to_stop(loop);
  ASSERT_EQ(here.closed.size(), 1U);
  EXPECT_NE(here.closed[0].what.find("damaged on its way"), std::string::npos);
}

TEST_F(ConnectionTest, EndsOnceWhenThePeerClosesInTheMidstOfAFrame) {
  make_raw_pair();
  here.after_closed = [&] { loop.stop(); };
  here.start();
  write_raw(wire::frame(wire::Repaired{7}).substr(0, 17));
  ::shutdown(raw.get(), SHUT_WR);  // Half open: the socket could still read.
  run_to_stop(loop);
  ASSERT_EQ(here.closed.size(), 1U);
  EXPECT_NE(here.closed[0].what.find("closed the connection"), std::string::npos);
  here.connection->send(wire::Heartbeat{});  // On a closed connection these calls do nothing.
  here.connection->close();
  here.connection->abort(Error{});
  loop.post([&] { loop.stop(); });
  run_to_stop(loop);
  EXPECT_EQ(here.closed.size(), 1U);
}

TEST_F(ConnectionTest, SendsWhatIsQueuedBeforeItCloses) {
  make_pair();
  int ends = 0;
  here.after_closed = there.after_closed = [&] {
    if (++ends == 2) loop.stop();
  };
  here.start();
  there.start();
  const std::string text(100'000, 'x');
  for (int i = 0; i < 50; ++i) there.connection->send(wire::StatusReply{text});
  here.connection->send(wire::Heartbeat{});  // This message is unread when the other end closes.
  there.connection->close();
  there.connection->send(wire::StatusReply{"too late"});
  run_to_stop(loop);
  EXPECT_EQ(here.messages.size(), 50U);
  EXPECT_EQ(here.closed.size(), 1U);
  EXPECT_EQ(there.closed.size(), 1U);
  EXPECT_TRUE(there.messages.empty()) << "no message after close()";
}

// A socket that is closed at once answers what the peer still sends with a reset, which takes away
// what the peer has not received.
TEST_F(ConnectionTest, LosesNothingThatItSentWhenThePeerStillSpeaks) {
  make_raw_pair();
  here.start();
  const std::string sent = wire::frame(wire::StatusReply{std::string(100'000, 'x')});
  here.connection->send(wire::StatusReply{std::string(100'000, 'x')});
  here.connection->close();
  std::function<void()> until_sent = [&] {
    if (here.connection->queued_bytes() == 0) return loop.stop();
    loop.post(until_sent);
  };
  loop.post(until_sent);
  run_to_stop(loop);
  write_raw(wire::frame(wire::Heartbeat{}));
  std::string got;
  std::array<char, 8192> block{};
  ssize_t bytes = 0;
  while ((bytes = ::recv(raw.get(), block.data(), block.size(), 0)) > 0) {
    got.append(block.data(), static_cast<std::size_t>(bytes));
  }
  EXPECT_EQ(bytes, 0) << "an orderly end";
  EXPECT_TRUE(got == sent) << got.size() << " bytes of " << sent.size();
}

TEST_F(ConnectionTest, ClosesEvenIfThePeerNeverDoes) {
  make_raw_pair();
  here.after_closed = [&] { loop.stop(); };
  here.start();
  here.connection->send(
      wire::StatusReply{std::string(8'000'000, 'x')});  // More than the kernel takes.
  here.connection->close();
  run_to_stop(loop);
  EXPECT_EQ(here.closed.size(), 1U);
}

TEST_F(ConnectionTest, MayBeEndedFromItsOwnCallback) {
  make_pair();
  here.after_message = [&] {
    here.connection->abort(Error{Blame::kUser, "enough"});
    here.connection.reset();
  };
  here.after_closed = [&] { loop.stop(); };
  here.start();
  there.start();
  for (int i = 0; i < 3; ++i) there.connection->send(wire::Heartbeat{});
  run_to_stop(loop);
  EXPECT_EQ(here.messages.size(), 1U);
  ASSERT_EQ(here.closed.size(), 1U);
  EXPECT_EQ(here.closed[0].what, "enough");
}

TEST_F(ConnectionTest, LetsGoOfItsHandlersWhenItIsOver) {
  make_pair();
  std::weak_ptr<Connection> weak = here.connection;
  const auto token = std::make_shared<int>();
  here.connection->start({[held = here.connection, token](const wire::Message&) {},
                          [this, token](const Error&) { loop.stop(); }});
  there.start();
  here.connection.reset();
  there.connection->abort(Error{Blame::kUser, "enough"});
  run_to_stop(loop);
  EXPECT_TRUE(weak.expired());
  EXPECT_EQ(token.use_count(), 1);
}

TEST_F(ConnectionTest, ReportsAnEndThatCameBeforeTheStart) {
  make_pair();
  here.connection->abort(Error{Blame::kUser, "never mind"});
  here.after_closed = [&] { loop.stop(); };
  here.start();
  run_to_stop(loop);
  ASSERT_EQ(here.closed.size(), 1U);
  EXPECT_EQ(here.closed[0].what, "never mind");
}

TEST_F(ConnectionTest, ClosesWhenThePeerTakesNoData) {
  make_raw_pair({.queue_limit_bytes = 1'000'000});
  here.after_closed = [&] { loop.stop(); };
  here.start();
  std::size_t sent = 0;
  // The loop runs between the sends, so that the kernel takes as much as it can.
  std::function<void()> more = [&] {
    here.connection->send(wire::StatusReply{std::string(100'000, 'x')});
    if (!here.connection->is_open()) return;
    EXPECT_LE(here.connection->queued_bytes(), 1'000'000U);
    ++sent;
    loop.post(more);
  };
  loop.post(more);
  run_to_stop(loop);
  ASSERT_EQ(here.closed.size(), 1U);
  EXPECT_NE(here.closed[0].what.find("takes no data"), std::string::npos);
  EXPECT_GE(sent, 9U);
}

TEST_F(ConnectionTest, LosesAPeerWhoseHostTakesNothingForTheLimit) {
  make_raw_pair({.silence_limit = milliseconds(700)});
  here.after_closed = [&] { loop.stop(); };
  here.start();
  const Instant start = Loop::now();
  here.connection->send(wire::StatusReply{std::string(12'000'000, 'x')});
  run_to_stop(loop);
  EXPECT_EQ(here.closed.size(), 1U);
  EXPECT_GE(Loop::now() - start, milliseconds(700));
}

TEST_F(ConnectionTest, SurvivesWritingToAPeerThatHasReset) {
  make_raw_pair();
  here.after_closed = [&] { loop.stop(); };
  here.start();
  std::function<void()> more = [&] {  // SIGPIPE would end this test with its default action.
    here.connection->send(wire::StatusReply{std::string(10'000, 'x')});
    if (here.connection->is_open()) loop.post(more);
  };
  loop.post(more);
  reset_raw();
  run_to_stop(loop);
  EXPECT_EQ(here.closed.size(), 1U);
}

TEST_F(ConnectionTest, GivesThePeersLastWordsThoughWritingFailed) {
  make_raw_pair();
  std::string words;
  for (std::uint64_t i = 0; i < 3000; ++i) words += wire::frame(wire::Repaired{i});
  write_raw(words);  // More than one read takes, and no more than our kernel takes before.
  reset_raw();
  here.after_closed = [&] { loop.stop(); };
  here.start();
  here.connection->send(wire::Heartbeat{});
  here.after_message = [&] { here.connection->send(wire::Heartbeat{}); };
  run_to_stop(loop);
  EXPECT_EQ(here.messages.size(), 3000U);
  EXPECT_EQ(here.closed.size(), 1U);
}

// A child that is forked while connections are open, and that stays until the test lets it go.
TEST_F(ConnectionTest, IsNotKeptOpenByAForkedChild) {
  make_pair();
  there.after_closed = [&] { loop.stop(); };
  here.start();
  there.start();
  const int fd = here.connection->descriptor();
  std::array<int, 2> gate{};
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe2(gate.data(), O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(ready.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    struct stat about {};
    ::fstat(fd, &about);
    const bool is_socket = S_ISSOCK(about.st_mode);
    char wait = 0;
    ::close(gate[1]);
    (void)!::write(ready[1], "y", 1);
    (void)!::read(gate[0], &wait, 1);
    ::_exit(is_socket ? 1 : 0);
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  const std::uint16_t port = listener_->port();
  listener_.reset();
  EXPECT_TRUE(listen(loop, "127.0.0.1", port)) << "the child holds the port";
  here.connection->abort(Error{Blame::kUser, "as if this process died"});
  run_to_stop(loop);  // If the child held the socket, this would wait for the child's end.
  EXPECT_EQ(there.closed.size(), 1U);
  for (const int end : {gate[0], gate[1], ready[0], ready[1]}) ::close(end);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the child had the socket";
}

TEST_F(ConnectionTest, TakesNothingFromAForkedChildOnceItIsClosed) {
  make_pair();
  listener_.reset();
  for (End* end : {&here, &there}) {
    end->connection->abort(Error{});
    end->connection.reset();
  }
  std::array<std::array<int, 2>, 10> pipes{};  // The pipes get the numbers that the sockets had.
  for (auto& pipe : pipes) ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int lost = 0;
    for (const auto& pipe : pipes) {
      struct stat about {};
      if (::fstat(pipe[0], &about) != 0 || !S_ISFIFO(about.st_mode)) ++lost;
    }
    ::_exit(lost);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const auto& pipe : pipes) {
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
}

}  // namespace
}  // namespace holdfast::io
