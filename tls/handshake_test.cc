// Handshakes in memory: the sound one, and each wrong set-up as both sides tell it.
#include "tls/handshake.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/text.h"
#include "os/files.h"
#include "tls/testing/papers.h"

namespace holdfast::tls {
namespace {

Result<SslPtr> begin(const Papers& papers, Role role) {
  auto context = papers.context(role);
  if (!context) return context.error();
  return (*context)->begin();
}

// Each test runs with TLS 1.2 and 1.3.
class Handshake : public testing::TestWithParam<int> {
 protected:
  // An end that checks nothing presents the certificate of `theirs` to a peer with the
  // configuration of `ours`. The peer has to say `words`, and the careless end `told`.
  void expect_refused(const Papers& ours, const Papers& theirs, Role careless,
                      const std::string& words, const std::string& told) {
    const bool server = careless == Role::kServer;
    Result<SslPtr> careful = begin(ours, server ? Role::kClient : Role::kServer);
    Result<SslPtr> other = theirs.careless(careless);
    const auto meeting =
        server ? meet_under(GetParam(), other, careful) : meet_under(GetParam(), careful, other);
    const auto& refusal = server ? meeting.client_refusal : meeting.server_refusal;
    const auto& learned = server ? meeting.server_refusal : meeting.client_refusal;
    EXPECT_TRUE(has(refusal, cat("the ", name_of(careless), "'s certificate (CN = "))) << refusal;
    EXPECT_TRUE(has(refusal, words)) << refusal;
    EXPECT_TRUE(has(learned, cat(" refused this ", name_of(careless), "'s certificate (CN = ")))
        << learned;
    EXPECT_TRUE(has(learned, told)) << learned;
    for (const auto& text : {refusal, learned}) {
      EXPECT_FALSE(has(text, kServerPassword) || has(text, kClientPassword)) << text;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Versions, Handshake, testing::Values(TLS1_2_VERSION, TLS1_3_VERSION),
                         [](const auto& version) {
                           return version.param == TLS1_2_VERSION ? "Tls12" : "Tls13";
                         });

TEST_P(Handshake, SucceedsBetweenTheRolesOfOneJob) {
  Papers papers;
  for (const char* list : {"", "ECDHE-ECDSA-CHACHA20-POLY1305"}) {
    papers.config.cipher_list = list;
    const auto meeting =
        meet_under(GetParam(), begin(papers, Role::kServer), begin(papers, Role::kClient));
    EXPECT_TRUE(meeting.agreed()) << meeting.server_refusal << " / " << meeting.client_refusal;
    EXPECT_EQ(meeting.version, GetParam() == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3");
    EXPECT_TRUE(has(meeting.cipher, *list == '\0' ? "256" : "CHACHA20")) << meeting.cipher;
  }
}

TEST_P(Handshake, SucceedsWithCertificatesThatNameNoRole) {
  Papers papers;
  papers.issue(Role::kServer, {.name = "any"}, true);
  papers.issue(Role::kClient, {.name = "any"}, true);
  EXPECT_TRUE(
      meet_under(GetParam(), begin(papers, Role::kServer), begin(papers, Role::kClient)).agreed());
}

TEST_P(Handshake, RefusesAnotherAuthority) {
  const Papers ours;
  for (const char* name : {"another", "authority"}) {
    const Papers theirs(name);
    for (const Role role : {Role::kServer, Role::kClient}) {
      expect_refused(ours, theirs, role, "is not signed by an authority of ca_cert_path", "");
    }
  }
}

TEST_P(Handshake, RefusesWhatHasExpiredOrIsNotYetValid) {
  for (const Role role : {Role::kServer, Role::kClient}) {
    Papers papers;
    papers.issue(role, {.name = "old", .validity = kPast});
    expect_refused(papers, papers, role, "has expired at 20", "has expired: renew it");
    papers.issue(role, {.name = "new", .validity = kFuture});
    expect_refused(papers, papers, role, "is not yet valid, only from 20", "is not yet valid");
  }
}

TEST_P(Handshake, RefusesWhatIsRevoked) {
  for (const Role role : {Role::kServer, Role::kClient}) {
    Papers papers;
    papers.revoke({papers.issue(role, {.name = "thief"})});
    expect_refused(papers, papers, role, "is revoked by the list of crl_path", "it is revoked");
  }
}

TEST_P(Handshake, RefusesTheWrongRole) {
  Papers papers;
  papers.issue(Role::kServer, {.name = "worker", .roles = "clientAuth"});
  expect_refused(papers, papers, Role::kServer, "must name serverAuth", "not made for this role");
  papers.issue(Role::kServer, {.name = "server"});
  papers.issue(Role::kClient, {.name = "scheduler", .roles = "serverAuth"});
  expect_refused(papers, papers, Role::kClient, "must name clientAuth", "not made for this role");
}

TEST_P(Handshake, RefusesAClientWithoutACertificate) {
  const Papers papers;
  Result<SslPtr> client = papers.careless(Role::kClient);
  SSL_certs_clear(client->get());
  const auto meeting = meet_under(GetParam(), begin(papers, Role::kServer), client);
  EXPECT_TRUE(has(meeting.server_refusal, "the client sent no certificate"));
  EXPECT_TRUE(has(meeting.client_refusal, GetParam() == TLS1_2_VERSION
                                              ? "found nothing in common"
                                              : "none was sent: set client_cert_path"))
      << meeting.client_refusal;
}

TEST_P(Handshake, RefusesListsOfCiphersThatHaveNothingInCommon) {
  Papers papers;
  papers.config.cipher_list = "ECDHE-ECDSA-AES256-GCM-SHA384";
  const auto server = begin(papers, Role::kServer);
  papers.config.cipher_list = "ECDHE-ECDSA-AES128-GCM-SHA256";
  const auto meeting = meet_under(GetParam(), server, begin(papers, Role::kClient));
  EXPECT_TRUE(has(meeting.server_refusal, "no cipher is in the lists of both sides"));
  EXPECT_TRUE(has(meeting.client_refusal, "compare the cipher_list of both sides"))
      << meeting.client_refusal;
}

// A client may ask for the host that it has called.
TEST_P(Handshake, RefusesAServerOfAnotherHost) {
  const Papers papers;
  for (const auto& [host, good] : {std::pair("localhost", true), std::pair("127.0.0.1", true),
                                   std::pair("node7", false), std::pair("10.0.0.1", false)}) {
    const auto client = begin(papers, Role::kClient);
    ASSERT_TRUE(require_host(client->get(), host));
    const auto meeting = meet_under(GetParam(), begin(papers, Role::kServer), client);
    EXPECT_EQ(meeting.agreed(), good) << host;
    EXPECT_EQ(has(meeting.client_refusal, "does not name the host"), !good)
        << meeting.client_refusal;
  }
  EXPECT_FALSE(require_host(begin(papers, Role::kClient)->get(), ""));
}

// MindSpore's instructions make such certificates. All but the name is still checked.
TEST_P(Handshake, TakesAServerWithoutAlternativeNamesForAnyHost) {
  Papers papers;
  const auto meeting_at = [&](const std::string& host) {
    const auto client = begin(papers, Role::kClient);
    EXPECT_TRUE(require_host(client->get(), host));
    return meet_under(GetParam(), begin(papers, Role::kServer), client);
  };
  const long serial = papers.issue(Role::kServer, {.name = "scheduler"});
  for (const char* host : {"node7", "10.0.0.1"}) {
    const auto meeting = meeting_at(host);
    EXPECT_TRUE(meeting.agreed()) << meeting.server_refusal << " / " << meeting.client_refusal;
  }
  const auto server = begin(papers, Role::kServer);
  papers.revoke({serial});
  const auto client = begin(papers, Role::kClient);
  ASSERT_TRUE(require_host(client->get(), "node7"));
  EXPECT_TRUE(has(meet_under(GetParam(), server, client).client_refusal, "is revoked"));
  papers.revoke({});
  papers.issue(Role::kServer, {.name = "node7", .hosts = {"node8"}});
  EXPECT_TRUE(has(meeting_at("node7").client_refusal, "does not name the host"));
}

// The list is replaced while the context lives: its next connection uses the new one.
TEST_P(Handshake, ReadsTheListAgainWhenItChanges) {
  Papers papers;
  const long serial = papers.issue(Role::kClient, {.name = "the-client"});
  const auto server = *papers.context(Role::kServer);
  const auto client = *papers.context(Role::kClient);
  const auto again = [&] {
    return meet_under(GetParam(), server->begin(), Result<SslPtr>(papers.careless(Role::kClient)));
  };
  EXPECT_TRUE(again().agreed());
  papers.revoke({serial});
  EXPECT_TRUE(has(again().server_refusal, "is revoked")) << again().server_refusal;
  papers.revoke({});
  EXPECT_TRUE(again().agreed());
  EXPECT_TRUE(meet_under(GetParam(), server->begin(), client->begin()).agreed());
}

TEST_P(Handshake, BeginsInSeveralThreadsWhileTheListChanges) {
  Papers papers;
  const auto server = *papers.context(Role::kServer);
  const auto client = *papers.context(Role::kClient);
  const auto list = *papers.authority.revocation_list({7}, Validity());
  std::atomic<int> agreed = 0;
  const auto meet_often = [&] {
    for (int i = 0; i < 20; ++i) {
      agreed += meet_under(GetParam(), server->begin(), client->begin()).agreed() ? 1 : 0;
      EXPECT_TRUE(os::write_file_atomically(papers.path("crl.pem"), list));
    }
  };
  std::thread other(meet_often);
  meet_often();
  other.join();
  EXPECT_EQ(agreed, 40);
}

// No peer is accepted as long as it is unknown which certificates are revoked.
TEST_P(Handshake, RefusesEverybodyWhileTheListCanNotBeUsed) {
  Papers papers;
  const auto server = *papers.context(Role::kServer);
  papers.write("crl.pem", "half a li");
  EXPECT_TRUE(has(server->begin().error().what, papers.path("crl.pem")));
  papers.revoke({}, kPast);
  EXPECT_TRUE(has(server->begin().error().what, "has expired at"));
  std::filesystem::remove(papers.path("crl.pem"));
  EXPECT_TRUE(has(server->begin().error().what, "No such file"));
  papers.revoke({});
  EXPECT_TRUE(meet_under(GetParam(), server->begin(), begin(papers, Role::kClient)).agreed());
}

// No session from before the change is resumed, because then its certificate would not be checked.
TEST_P(Handshake, ResumesNoSessionOverAChangeOfTheList) {
  Papers papers;
  const long serial = papers.issue(Role::kClient, {.name = "the-client"});
  const auto server = *papers.context(Role::kServer);
  const auto first = Result<SslPtr>(papers.careless(Role::kClient));
  ASSERT_TRUE(meet_under(GetParam(), server->begin(), first).agreed());
  const std::unique_ptr<SSL_SESSION, Freer<SSL_SESSION_free>> session(
      SSL_get1_session(first->get()));
  bool resumed = false;
  const auto resume = [&] {
    Result<SslPtr> client = papers.careless(Role::kClient);
    EXPECT_EQ(SSL_set_session(client->get(), session.get()), 1);
    const auto meeting = meet_under(GetParam(), server->begin(), client);
    resumed = SSL_session_reused(client->get()) == 1;
    return meeting;
  };
  ASSERT_TRUE(resume().agreed());
  ASSERT_TRUE(resumed);
  papers.revoke({serial});
  EXPECT_TRUE(has(resume().server_refusal, "is revoked"));
}

TEST_P(Handshake, NamesAPeerThatSpeaksInTheClear) {
  const Papers papers;
  for (const Role role : {Role::kServer, Role::kClient}) {
    for (const char* plain : {"GET / HTTP/1.1\r\n\r\n", "HF01 some frame in the clear"}) {
      const auto ssl = begin(papers, role);
      ASSERT_TRUE(ssl);
      SSL_set_bio(ssl->get(), BIO_new_mem_buf(plain, -1), BIO_new(BIO_s_mem()));
      const int result = SSL_do_handshake(ssl->get());
      ASSERT_NE(result, 1);
      const auto reason = why(ssl->get(), result);
      EXPECT_TRUE(has(reason, "the peer does not speak TLS")) << reason;
    }
  }
}

TEST_P(Handshake, NamesAPeerThatGoesAway) {
  const Papers papers;
  const auto ssl = begin(papers, Role::kServer);
  BIO* nothing = BIO_new(BIO_s_mem());
  BIO_set_mem_eof_return(nothing, 0);
  SSL_set_bio(ssl->get(), nothing, BIO_new(BIO_s_mem()));
  const int result = SSL_do_handshake(ssl->get());
  EXPECT_TRUE(has(why(ssl->get(), result), "the peer closed the connection in the middle"));
}

// The peer chooses its name, so what is shown of it must be short and plain.
TEST_P(Handshake, ShowsNoControlCharactersOfAPeersName) {
  Papers ours;
  Papers theirs("another");
  theirs.issue(Role::kClient, {.name = "evil\n\x1b[31m name"});
  expect_refused(ours, theirs, Role::kClient, "CN = evil\\0A\\1B[31m name", "");
}

}  // namespace
}  // namespace holdfast::tls
