#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
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

TEST(Listen, NamesThePortThatIsTaken) {
  Loop loop;
  const auto first = listen(loop, "127.0.0.1", 0);
  ASSERT_TRUE(first);
  const auto port = (*first)->port();
  const auto second = listen(loop, "127.0.0.1", port);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().blame, Blame::kUser);
  EXPECT_NE(second.error().what.find(cat("127.0.0.1:", port)), std::string::npos);
  EXPECT_NE(second.error().what.find("choose another"), std::string::npos);
}

TEST(Listen, RefusesAnAddressThatThisHostHasNot) {
  Loop loop;
  const auto listener = listen(loop, "192.0.2.1", 0);
  ASSERT_FALSE(listener);
  EXPECT_NE(listener.error().what.find("192.0.2.1"), std::string::npos);
}

struct Attempted {
  int answers = 0;
  std::string error;
};

Attempted try_to_connect(const std::string& host, std::uint16_t port, Duration timeout) {
  Loop loop;
  Attempted attempted;
  connect(loop, host, port, kMembership, timeout, [&](Result<Pointer> result) {
    ++attempted.answers;
    if (!result) attempted.error = result.error().what;
    loop.after(milliseconds(50),
               [&] { loop.stop(); });  // Time for a second answer, if there is one.
  });
  EXPECT_EQ(attempted.answers, 0) << "never inside the call";
  run_to_stop(loop);
  return attempted;
}

TEST(Connect, NamesWhoRefused) {
  std::uint16_t port = 0;
  {
    Loop loop;
    port = (*listen(loop, "127.0.0.1", 0))->port();
  }
  const auto attempted = try_to_connect("127.0.0.1", port, seconds(30));
  EXPECT_EQ(attempted.answers, 1);
  EXPECT_NE(attempted.error.find(cat("127.0.0.1:", port)), std::string::npos) << attempted.error;
}

TEST(Probe, SaysThatNobodyListens) {
  Loop loop;
  bool refused = false;
  probe(loop, "127.0.0.1", os::free_port(), seconds(5), [&] {
    refused = true;
    loop.stop();
  });
  loop.after(seconds(10), [&] { loop.stop(); });
  loop.run();
  EXPECT_TRUE(refused);
}

TEST(Probe, SaysNothingOfOneWhoListens) {
  Loop loop;
  const auto listener = listen(loop, "127.0.0.1", 0);
  ASSERT_TRUE(listener);
  bool refused = false;
  probe(loop, "127.0.0.1", (*listener)->port(), seconds(5), [&] { refused = true; });
  loop.after(milliseconds(300), [&] { loop.stop(); });
  loop.run();
  EXPECT_FALSE(refused);
}

TEST(Connect, FindsAHostByItsName) {
  Loop loop;
  bool connected = false;
  const auto listener = listen(loop, "localhost", 0);
  ASSERT_TRUE(listener) << listener.error().what;
  (*listener)->serve({.membership = kMembership, .on_accept = [](const Pointer&, auto) {}});
  connect(loop, "localhost", (*listener)->port(), kMembership, seconds(30),
          [&](Result<Pointer> result) {
            connected = result.has_value();
            loop.stop();
          });
  run_to_stop(loop);
  EXPECT_TRUE(connected);
}

TEST(Connect, NamesAHostThatIsUnknown) {
  const auto attempted = try_to_connect("no-such-host.invalid", 1, seconds(20));
  EXPECT_EQ(attempted.answers, 1);
  EXPECT_NE(attempted.error.find("no-such-host.invalid:1"), std::string::npos) << attempted.error;
}

TEST(Connect, GivesUpWhenTheTimeIsOver) {
  // A listener whose queue is full drops what comes next without a word.
  const os::Fd server = os::listening_at(0, 0);
  const sockaddr_in address = os::loopback(os::port_of(server));
  std::vector<os::Fd> fillers;
  for (int i = 0; i < 4; ++i) {
    fillers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)::connect(fillers.back().get(), reinterpret_cast<const sockaddr*>(&address),
                    sizeof address);
  }
  const Instant start = Loop::now();
  const auto attempted = try_to_connect("127.0.0.1", os::port_of(server), milliseconds(200));
  EXPECT_EQ(attempted.answers, 1);
  EXPECT_NE(attempted.error.find("no answer in time"), std::string::npos) << attempted.error;
  EXPECT_GE(Loop::now() - start, milliseconds(200));
}

TEST(Connect, WorksBetweenTwoThreadsEachWithItsLoop) {
  Loop server;
  std::vector<Pointer> accepted;
  auto listener = listen(server, "127.0.0.1", 0);
  ASSERT_TRUE(listener);
  const auto accept = [&](const Pointer& connection, wire::PeerKind) {
    accepted.push_back(connection);
    connection->start({[connection](const wire::Message& message) { connection->send(message); },
                       [&](const Error&) { server.stop(); }});
  };
  (*listener)->serve({.membership = kMembership, .on_accept = accept});
  const auto port = (*listener)->port();
  std::uint64_t echoed = 0;
  std::thread client([&] {
    Loop loop;
    Pointer connection;
    connect(loop, "127.0.0.1", port, kMembership, seconds(30), [&](Result<Pointer> result) {
      connection = *result;
      connection->start({[&](const wire::Message& message) {
                           echoed = std::get<wire::Repaired>(message).generation;
                           if (echoed == 500) return connection->close();
                           connection->send(wire::Repaired{echoed + 1});
                         },
                         [&](const Error&) { loop.stop(); }});
      connection->send(wire::Repaired{1});
    });
    run_to_stop(loop);
    connection.reset();
  });
  run_to_stop(server);
  client.join();
  EXPECT_EQ(echoed, 500U);
  accepted.clear();
  listener->reset();
}

}  // namespace
}  // namespace holdfast::io
