// Connections under TLS: they carry what those in the clear carry, and each wrong set-up is named
// on both sides.
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rounds_for_test.h"
#include "base/text.h"
#include "io/connection.h"
#include "io/testing.h"
#include "os/fd.h"
#include "os/files.h"
#include "tls/testing/papers.h"

namespace holdfast::io {
namespace {

using std::chrono::seconds;
using tls::Papers;
using Pointer = std::shared_ptr<Connection>;

class TlsConnectionTest : public testing::Test {
 protected:
  void serve(const std::shared_ptr<tls::Context>& context, const std::string& token = "",
             Door door = {}) {
    listener_ = *listen(loop, "127.0.0.1", 0);
    listener_->serve({.membership = {.job = "job", .token = token, .tls = context},
                      .on_accept =
                          [this](Pointer connection, wire::PeerKind) {
                            here = std::move(connection);
                            stop_when(here != nullptr && there != nullptr);
                          },
                      .on_refused =
                          [this](const std::string&, const std::string& why) {
                            refused = why;
                            stop_when(!error.empty());
                          },
                      .door = door});
  }

  os::Fd stranger(std::string_view bytes) { return stranger_at(listener_->port(), bytes); }

  // Connects, and waits until both ends are there, or both know why not.
  void meet(const std::shared_ptr<tls::Context>& context, const std::string& host = "127.0.0.1",
            const std::string& token = "") {
    connect(loop, host, listener_->port(), {.job = "job", .token = token, .tls = context},
            seconds(30), [this](Result<Pointer> made) {
              if (made) there = *made;
              error = made ? "" : made.error().what;
              stop_when(made ? here != nullptr : !refused.empty());
            });
    run_to_stop(loop);
  }
  void stop_when(bool condition) {
    if (condition) loop.stop();
  }

  void make_pair() {
    serve(*papers.context(tls::Role::kServer));
    meet(*papers.context(tls::Role::kClient));
    ASSERT_TRUE(here && there) << error << " / " << refused;
    here->start({[this](wire::Message message) {
                   heard.push_back(std::move(message));
                   after_message();
                 },
                 [this](const Error& why) {
                   closed = why.what;
                   after_closed();
                 }});
    there->start({[](const wire::Message&) {}, [](const Error&) {}});
  }

  Papers papers;
  Loop loop;
  std::unique_ptr<Listener> listener_;
  Pointer here;
  Pointer there;
  std::string refused;
  std::string error;
  std::vector<wire::Message> heard;
  std::function<void()> after_message = [] {};
  std::function<void()> after_closed = [] {};
  std::string closed;
};

TEST_F(TlsConnectionTest, BringsMessagesInOrder) {
  make_pair();
  after_message = [&] { stop_when(heard.size() == 2000); };
  for (std::uint64_t i = 0; i < 2000; ++i) there->send(wire::Repaired{i});
  run_to_stop(loop);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    EXPECT_EQ(heard[i], wire::Message(wire::Repaired{i}));
  }
}

// The first connection may have ended without a goodbye, and the server may be another one by now.
TEST_F(TlsConnectionTest, ResumesWhoComesBack) {
  const auto client = *papers.context(tls::Role::kClient);
  for (const int resumed : {0, 1}) {
    const auto server = *papers.context(tls::Role::kServer);
    ASSERT_TRUE(server->keep_sessions_by("what a job's scheduler has drawn"));
    const auto counted = *server->begin();
    serve(server);
    meet(client);
    ASSERT_TRUE(here && there) << error << " / " << refused;
    EXPECT_EQ(SSL_CTX_sess_hits(SSL_get_SSL_CTX(counted.get())), resumed);
    for (auto* end : {&here, &there}) {
      (*end)->abort(Error{Blame::kWorld, "killed"});
      end->reset();
    }
    listener_.reset();
  }
}

TEST_F(TlsConnectionTest, BringsLargeMessagesAndWhatIsQueuedAtTheEnd) {
  make_pair();
  // As much as is sent in the two seconds that a connection takes to end, on a busy machine too.
  const wire::Message big = wire::StatusReply{std::string(rounds(wire::kMaxBodyBytes) - 5, 'x')};
  after_closed = [&] { loop.stop(); };
  for (int i = 0; i < 2; ++i) there->send(big);
  there->close();
  run_to_stop(loop);
  ASSERT_EQ(heard.size(), 2U);
  EXPECT_EQ(heard.back(), big);
}

TEST_F(TlsConnectionTest, EndsWhenThePeerIsGoneWithoutAWord) {
  make_pair();
  after_message = [&] { there->abort(Error{Blame::kWorld, "killed"}); };
  after_closed = [&] { loop.stop(); };
  there->send(wire::Heartbeat{});
  run_to_stop(loop);
  EXPECT_NE(closed.find("closed the connection"), std::string::npos) << closed;
}

TEST_F(TlsConnectionTest, NeedsTheTokenTooWhereThereIsOne) {
  serve(*papers.context(tls::Role::kServer), "one token");
  meet(*papers.context(tls::Role::kClient), "127.0.0.1", "another token");
  EXPECT_NE(refused.find("another token"), std::string::npos) << refused;
  EXPECT_NE(error.find("did not accept this process"), std::string::npos) << error;
}

TEST_F(TlsConnectionTest, NamesAClientInTheClear) {
  serve(*papers.context(tls::Role::kServer));
  meet(nullptr);
  EXPECT_NE(refused.find("it speaks no TLS"), std::string::npos) << refused;
  EXPECT_NE(error.find("it speaks TLS, and this process does not"), std::string::npos) << error;
}

// Otherwise a flood of strangers that come and go would take memory without bound.
TEST_F(TlsConnectionTest, KeepsNothingOfAStrangerWhoIsGone) {
  const auto context = *papers.context(tls::Role::kServer);
  serve(context);
  os::Fd stranger = os::connected_to(listener_->port());
  ASSERT_EQ(::send(stranger.get(), "\x16", 1, 0), 1) << "so it is refused";
  stranger.reset();
  error = "nobody connects";  // So the loop ends with the refusal.
  run_to_stop(loop);
  EXPECT_NE(refused.find("begins with TLS"), std::string::npos) << refused;
  listener_.reset();
  int turns = 10;  // In these turns the cancelled operations end.
  const std::function<void()> turn = [&] { turns-- > 0 ? loop.post(turn) : loop.stop(); };
  loop.post(turn);
  run_to_stop(loop);
  EXPECT_EQ(context.use_count(), 1);
}

TEST_F(TlsConnectionTest, NamesAServerInTheClear) {
  serve(nullptr);
  meet(*papers.context(tls::Role::kClient));
  EXPECT_NE(refused.find("it speaks TLS, and this process does not"), std::string::npos) << refused;
  EXPECT_NE(error.find("it speaks no TLS, and this process does"), std::string::npos) << error;
}

// A stranger does not even learn that this is a server of TLS.
TEST_F(TlsConnectionTest, BeginsNoTlsWithAStranger) {
  serve(*papers.context(tls::Role::kServer), "one token");
  const auto client = *papers.context(tls::Role::kClient);
  meet(client, "127.0.0.1", "");
  EXPECT_NE(refused.find("another token"), std::string::npos) << refused;
  // TLS from the first byte on, as an ordinary client begins it.
  const auto ssl = client->begin();
  SSL_set_bio((*ssl).get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  (void)SSL_do_handshake((*ssl).get());
  char* hello = nullptr;
  const auto size = BIO_get_mem_data(SSL_get_wbio((*ssl).get()), &hello);
  const os::Fd raw = stranger(std::string_view(hello, static_cast<std::size_t>(size)));
  refused.clear();
  run_to_stop(loop);
  EXPECT_NE(refused.find("it begins with TLS"), std::string::npos) << refused;
  char answer[64];
  EXPECT_LE(::recv(raw.get(), answer, sizeof answer, MSG_DONTWAIT), 0) << "no certificate";
}

// The door has the same room and the same limits as in the clear.
TEST_F(TlsConnectionTest, IsNotBlockedByStrangers) {
  serve(*papers.context(tls::Role::kServer), "", {.most = 8, .patience = seconds(3600)});
  std::vector<os::Fd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(stranger(i % 2 == 0 ? "" : "HFL2t"));
  const Instant begin = Loop::now();
  meet(*papers.context(tls::Role::kClient));
  ASSERT_TRUE(here && there) << error << " / " << refused;
  EXPECT_LT(Loop::now() - begin, seconds(8)) << "8 at a time, 0.1 s each; the rest is a busy host";
}

TEST_F(TlsConnectionTest, NamesAClientOfAnotherAuthority) {
  const Papers others("another");
  serve(*papers.context(tls::Role::kServer));
  meet(*others.context(tls::Role::kClient));
  EXPECT_FALSE(error.empty());
  EXPECT_NE(refused.find("certificate"), std::string::npos) << refused;
  EXPECT_NE(error.find("certificate"), std::string::npos) << error;
}

TEST_F(TlsConnectionTest, NamesARevokedClient) {
  const long serial =
      papers.issue(tls::Role::kClient, {.name = "the-client", .roles = {}, .hosts = {}});
  const auto client = *papers.context(tls::Role::kClient);
  papers.revoke({serial});
  serve(*papers.context(tls::Role::kServer));
  // The client's own revocation list is from before.
  meet(client);
  EXPECT_NE(refused.find("revoked"), std::string::npos) << refused;
  EXPECT_NE(error.find("revoked"), std::string::npos) << error;
}

// The two ends have the same token: only TLS keeps them apart.
TEST_F(TlsConnectionTest, TellsTheClientIfTheServerCanNotBeginTls) {
  auto config = papers.config;
  config.crl_path = papers.path("of the client.pem");
  papers.write("of the client.pem", *os::read_file(papers.path("crl.pem")));
  serve(*papers.context(tls::Role::kServer));
  papers.write("crl.pem", "half a list");
  meet(*tls::Context::make(config, tls::Role::kClient, tls::Password(tls::kClientPassword)));
  EXPECT_NE(refused.find(papers.path("crl.pem")), std::string::npos) << refused;
  EXPECT_NE(
      error.find("it can not begin TLS: the revocation list (crl_path), " + papers.path("crl.pem")),
      std::string::npos)
      << error;
}

TEST_F(TlsConnectionTest, TellsTheServerIfTheClientCanNotBeginTls) {
  auto config = papers.config;
  config.crl_path = papers.path("of the client.pem");
  papers.write("of the client.pem", *os::read_file(papers.path("crl.pem")));
  serve(*papers.context(tls::Role::kServer));
  const auto client =
      *tls::Context::make(config, tls::Role::kClient, tls::Password(tls::kClientPassword));
  papers.write("of the client.pem", "half a list");
  meet(client);
  const std::string list = papers.path("of the client.pem");
  EXPECT_NE(refused.find("it can not begin TLS: "), std::string::npos) << refused;
  EXPECT_NE(refused.find(list), std::string::npos) << refused;
  EXPECT_NE(error.find("this process can not begin TLS: "), std::string::npos) << error;
  EXPECT_NE(error.find(list), std::string::npos) << error;
}

TEST_F(TlsConnectionTest, NeedsTheExtendedMasterSecretUnderTls12) {
  for (const bool has_it : {true, false}) {
    const auto server = *papers.context(tls::Role::kServer);
    const auto client = *papers.context(tls::Role::kClient);
    SSL_CTX* context = SSL_get_SSL_CTX(client->begin()->get());
    ASSERT_EQ(SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION), 1);
    if (!has_it) SSL_CTX_set_options(context, SSL_OP_NO_EXTENDED_MASTER_SECRET);
    serve(server);
    meet(client);
    EXPECT_EQ(here && there, has_it) << error << " / " << refused;
    listener_.reset();
    here.reset();
    there.reset();
  }
  for (const auto& text : {error, refused}) {
    EXPECT_NE(text.find("TLS 1.2 without the extended master secret"), std::string::npos) << text;
  }
}

TEST_F(TlsConnectionTest, NamesAServerOfAnotherName) {
  papers.issue(tls::Role::kServer, {.name = "elsewhere", .roles = {}, .hosts = {"elsewhere"}});
  serve(*papers.context(tls::Role::kServer));
  meet(*papers.context(tls::Role::kClient));
  EXPECT_NE(error.find("127.0.0.1"), std::string::npos) << error;
  EXPECT_NE(refused.find("name the host of MS_SCHED_HOST"), std::string::npos) << refused;
}

}  // namespace
}  // namespace holdfast::io
