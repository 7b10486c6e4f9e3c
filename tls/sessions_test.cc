// Sessions: a client that comes back is resumed, unless it would be refused now.
#include "tls/sessions.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "tls/testing/papers.h"

namespace holdfast::tls {
namespace {

constexpr const char* kSecret = "what a job's scheduler has drawn";

// Each test runs with TLS 1.2 and 1.3.
class Sessions : public testing::TestWithParam<int> {
 protected:
  using Pointer = std::shared_ptr<Context>;

  Pointer server_of(const Papers& papers, const std::string& secret = kSecret) {
    auto made = papers.context(Role::kServer);
    EXPECT_TRUE(made) << made.error().what;
    EXPECT_TRUE((*made)->keep_sessions_by(secret));
    return *made;
  }
  static Pointer client_of(const Papers& papers) { return *papers.context(Role::kClient); }

  Meeting meet_again(const Pointer& server, const Pointer& client,
                     const std::string& host = "localhost") {
    const auto calling = client->begin();
    EXPECT_TRUE(require_host(calling->get(), host));
    offer_session(calling->get());
    return meet_under(GetParam(), server->begin(), calling);
  }
  // Whether a client that was there is resumed the next time.
  void expect_resumed(const Meeting& meeting, bool resumed) {
    EXPECT_TRUE(meeting.agreed()) << meeting.server_refusal << " / " << meeting.client_refusal;
    EXPECT_EQ(meeting.resumed, resumed);
  }
};

INSTANTIATE_TEST_SUITE_P(Versions, Sessions, testing::Values(TLS1_2_VERSION, TLS1_3_VERSION),
                         [](const auto& version) {
                           return version.param == TLS1_2_VERSION ? "Tls12" : "Tls13";
                         });

TEST_P(Sessions, AreResumedAgainAndAgainAndByTheServersSuccessor) {
  const Papers papers;
  const auto client = client_of(papers);
  auto server = server_of(papers);
  expect_resumed(meet_again(server, client), false);
  for (int i = 0; i < 3; ++i) expect_resumed(meet_again(server, client), true);
  server = server_of(papers);
  for (int i = 0; i < 3; ++i) expect_resumed(meet_again(server, client), true);
  // Another process has none of them.
  expect_resumed(meet_again(server, client_of(papers)), false);
}

TEST_P(Sessions, AreOfOneJobAndOneHost) {
  const Papers papers;
  const auto client = client_of(papers);
  expect_resumed(meet_again(server_of(papers), client), false);
  expect_resumed(meet_again(server_of(papers, "another job's"), client), false);
  expect_resumed(meet_again(server_of(papers, "another job's"), client, "127.0.0.1"), false);
  EXPECT_FALSE(meet_again(server_of(papers, "another job's"), client, "elsewhere").agreed());
  expect_resumed(meet_again(server_of(papers, "another job's"), client), true);
}

TEST_P(Sessions, AreOfOneCertificate) {
  Papers papers;
  const auto client = client_of(papers);
  const auto server = server_of(papers);
  expect_resumed(meet_again(server, client), false);
  papers.issue(Role::kServer, {.name = "renewed", .roles = {}, .hosts = {"localhost"}});
  expect_resumed(meet_again(server, client), false);
  expect_resumed(meet_again(server, client), true);
  expect_resumed(meet_again(server_of(papers), client), true);
  papers.issue(Role::kClient, {.name = "renewed"});
  expect_resumed(meet_again(server, client), false);
  papers.config.cipher_list = "ECDHE-ECDSA-AES256-GCM-SHA384";
  expect_resumed(meet_again(server_of(papers), client), false);
}

TEST_P(Sessions, EndWithAChangeOfTheListOnEitherSide) {
  Papers papers;
  const long serial = papers.issue(Role::kClient, {.name = "the-client"});
  auto config = papers.config;
  config.crl_path = papers.path("client's.pem");
  const auto change_clients_list = [&](const std::set<long>& serials) {
    papers.write("client's.pem", *papers.authority.revocation_list(serials, Validity()));
  };
  change_clients_list({});
  const auto client = *Context::make(config, Role::kClient, Password(kClientPassword));
  auto server = server_of(papers);
  expect_resumed(meet_again(server, client), false);
  expect_resumed(meet_again(server, client), true);
  papers.revoke({serial + 1});
  expect_resumed(meet_again(server, client), false);
  expect_resumed(meet_again(server, client), true);
  change_clients_list({serial + 1});
  expect_resumed(meet_again(server, client), false);
  papers.revoke({serial});
  EXPECT_TRUE(has(meet_again(server, client).server_refusal, "is revoked"));
  server = server_of(papers);
  EXPECT_TRUE(has(meet_again(server, client).server_refusal, "is revoked")) << "nor by the next";
}

// A certificate may expire while its session is kept.
TEST_P(Sessions, EndWithTheCertificate) {
  Papers papers;
  std::shared_ptr<Context> client;
  std::shared_ptr<Context> server;
  // On a busy host the certificate may have expired before the session was resumed.
  for (std::chrono::seconds valid{2};; valid *= 2) {
    ASSERT_LT(valid, std::chrono::minutes(1));
    papers.issue(Role::kClient,
                 {.name = "soon", .validity = {.from = -std::chrono::hours(1), .until = valid}});
    auto made = papers.context(Role::kClient);
    if (!made) continue;
    client = *made;
    server = server_of(papers);
    (void)meet_again(server, client);
    const auto again = meet_again(server, client);
    if (again.agreed() && again.resumed) break;
  }
  Meeting last;
  for (int i = 0; i < 1200 && last.agreed(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    last = meet_again(server, client);
  }
  EXPECT_TRUE(has(last.server_refusal, "has expired at")) << last.server_refusal;
}

}  // namespace
}  // namespace holdfast::tls
