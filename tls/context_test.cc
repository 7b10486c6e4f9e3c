// Context: whatever is wrong with a role's certificate, key or lists is an error before any
// connection.
#include "tls/context.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "base/text.h"
#include "os/fd.h"
#include "os/files.h"
#include "tls/testing/papers.h"

namespace holdfast::tls {
namespace {

constexpr Role kRoles[] = {Role::kServer, Role::kClient};

std::string file_of(Role role) {
  return cat(name_of(role), ".p12");
}

// The error names the file, says this, and tells no password.
void expect_refused(const Papers& papers, Role role, const std::string& file, const char* words) {
  const auto error = papers.error_of(role);
  EXPECT_TRUE(has(error, words)) << error;
  EXPECT_TRUE(has(error, papers.path(file))) << error;
  EXPECT_FALSE(has(error, kServerPassword) || has(error, kClientPassword)) << error;
}

TEST(Context, IsMadeForBothRolesAndSaysWhoItIs) {
  const Papers papers;
  const auto server = papers.context(Role::kServer);
  ASSERT_TRUE(server) << server.error().what;
  EXPECT_TRUE(has((*server)->about(), "CN = the-server, valid until 20")) << (*server)->about();
  EXPECT_TRUE((*server)->warnings().empty());
  EXPECT_EQ(papers.error_of(Role::kClient), "none");
}

TEST(Context, RefusesAWrongPassword) {
  const Papers papers;
  for (const Role role : kRoles) {
    const auto made = Context::make(papers.config, role, Password("catfish-in-the-sea"));
    ASSERT_FALSE(made);
    EXPECT_TRUE(has(made.error().what, "does not open with the password")) << made.error().what;
    EXPECT_TRUE(has(made.error().what, papers.path(file_of(role)))) << made.error().what;
    EXPECT_FALSE(has(made.error().what, "catfish"));
  }
}

TEST(Context, RefusesFilesThatAreMissing) {
  for (const Role role : kRoles) {
    for (const auto& name : {file_of(role), std::string("ca.crt"), std::string("crl.pem")}) {
      const Papers papers;
      std::filesystem::remove(papers.path(name));
      expect_refused(papers, role, name, "can not be opened: No such file");
    }
  }
}

TEST(Context, RefusesFilesThatAreDamaged) {
  for (const Role role : kRoles) {
    Papers papers;
    const auto whole = *os::read_file(papers.path(file_of(role)));
    papers.write(file_of(role), whole.substr(0, whole.size() / 2));
    expect_refused(papers, role, file_of(role), "is damaged, or no PKCS#12 file");
    papers.write(file_of(role), "hello");
    expect_refused(papers, role, file_of(role), "is damaged, or no PKCS#12 file");
    auto changed = whole;
    changed[changed.size() / 3] ^= 1;
    papers.write(file_of(role), changed);
    expect_refused(papers, role, file_of(role), "changed after it was made");
    papers.write(file_of(role), whole);

    for (const char* name : {"ca.crt", "crl.pem"}) {
      const auto pem = *os::read_file(papers.path(name));
      auto cut = pem;
      cut[pem.size() / 2] = '\1';
      papers.write(name, cut);
      expect_refused(papers, role, name, "is damaged");
      papers.write(name, "no PEM at all");
      expect_refused(papers, role, name, "has none");
      papers.write(name, pem);
    }
    EXPECT_EQ(papers.error_of(role), "none");
  }
}

// Every prefix of each file is an error; none is taken for a shorter file that is sound.
TEST(Context, RefusesFilesThatWereCutOff) {
  Papers papers;
  for (const char* name : {"server.p12", "crl.pem"}) {
    const auto whole = *os::read_file(papers.path(name));
    for (std::size_t size = 0; size + 2 < whole.size(); size += 13) {
      papers.write(name, whole.substr(0, size));
      expect_refused(papers, Role::kServer, name, "");
    }
    papers.write(name, whole);
  }
}

TEST(Context, RefusesWhatHasExpiredOrIsNotYetValid) {
  for (const Role role : kRoles) {
    Papers papers;
    papers.issue(role, {.name = "old", .validity = kPast});
    expect_refused(papers, role, file_of(role), "has expired at 20");
    papers.issue(role, {.name = "new", .validity = kFuture});
    expect_refused(papers, role, file_of(role), "is not yet valid, only from 20");
  }
}

TEST(Context, RefusesAnotherAuthoritysCertificate) {
  // The second one has the same name as the right authority.
  for (const char* name : {"another authority", "authority"}) {
    for (const Role role : kRoles) {
      Papers papers;
      const Papers other(name);
      papers.write(file_of(role), *os::read_file(other.path(file_of(role))));
      expect_refused(papers, role, file_of(role), "is not signed by an authority of ca_cert_path");
    }
  }
}

TEST(Context, RefusesWhatIsRevoked) {
  for (const Role role : kRoles) {
    Papers papers;
    papers.revoke({papers.issue(role, {.name = "thief"})});
    expect_refused(papers, role, file_of(role), "is revoked by the list of crl_path");
  }
}

TEST(Context, RefusesAListThatTellsNothingAnyMore) {
  Papers papers;
  papers.revoke({}, kPast);
  expect_refused(papers, Role::kServer, "crl.pem", "has expired at 20");
  papers.revoke({}, kFuture);
  expect_refused(papers, Role::kServer, "crl.pem", "is not yet valid, only from 20");
  const Papers same_name;
  papers.write("crl.pem", *os::read_file(same_name.path("crl.pem")));
  expect_refused(papers, Role::kServer, "crl.pem", "is not signed by an authority");
}

TEST(Context, RefusesTheOtherRolesCertificate) {
  Papers papers;
  papers.issue(Role::kServer, {.name = "worker", .roles = "clientAuth"});
  expect_refused(papers, Role::kServer, "server.p12", "must name serverAuth, or be absent");
  papers.issue(Role::kClient, {.name = "scheduler", .roles = "serverAuth"});
  expect_refused(papers, Role::kClient, "client.p12", "must name clientAuth, or be absent");
}

TEST(Context, RefusesACertificateAsAnAuthority) {
  Papers papers;
  const auto identity =
      read_identity(papers.config.server_cert_path, Role::kServer, Password(kServerPassword));
  ASSERT_TRUE(identity);
  const BioPtr out(BIO_new(BIO_s_mem()));
  ASSERT_EQ(PEM_write_bio_X509(out.get(), identity->certificate.get()), 1);
  char* start = nullptr;
  const auto size = static_cast<std::size_t>(BIO_get_mem_data(out.get(), &start));
  papers.write("ca.crt", std::string(start, size));
  expect_refused(papers, Role::kClient, "ca.crt", "is no authority's: CN = the-server");
}

TEST(Context, RefusesWeakCiphers) {
  Papers papers;
  papers.config.cipher_list = "ECDHE-ECDSA-AES256-GCM-SHA384:AES128-SHA";
  EXPECT_TRUE(has(papers.error_of(Role::kServer), "weak ciphers: AES128-SHA"));
}

// A certificate of RSA with 1024 bits, signed by the authority of `papers`.
std::string weak_pkcs12(const Papers& papers) {
  const auto key_pem = *papers.authority.key();
  const auto authority_pem = *papers.authority.certificate();
  const KeyPtr signer(PEM_read_bio_PrivateKey(reader_of(key_pem).get(), nullptr, nullptr, nullptr));
  const CertificatePtr authority(
      PEM_read_bio_X509(reader_of(authority_pem).get(), nullptr, nullptr, nullptr));
  const KeyPtr key(EVP_RSA_gen(1024));
  const CertificatePtr weak(X509_new());
  X509_set_version(weak.get(), X509_VERSION_3);
  X509_set_issuer_name(weak.get(), X509_get_subject_name(authority.get()));
  X509_gmtime_adj(X509_getm_notBefore(weak.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(weak.get()), 365 * 86400);
  X509_set_pubkey(weak.get(), key.get());
  EXPECT_GT(X509_sign(weak.get(), signer.get(), EVP_sha256()), 0);
  const std::unique_ptr<PKCS12, Freer<PKCS12_free>> file(
      PKCS12_create(std::string(kServerPassword).c_str(), nullptr, key.get(), weak.get(), nullptr,
                    0, 0, 0, 0, 0));
  const BioPtr out(BIO_new(BIO_s_mem()));
  EXPECT_EQ(i2d_PKCS12_bio(out.get(), file.get()), 1);
  char* start = nullptr;
  const auto size = static_cast<std::size_t>(BIO_get_mem_data(out.get(), &start));
  return {start, size};
}

TEST(Context, RefusesAWeakKey) {
  Papers papers;
  papers.write("server.p12", weak_pkcs12(papers));
  expect_refused(papers, Role::kServer, "server.p12", "is too weak: it needs RSA keys of 2048");
}

// A second change within the same tick of the file system's clock would leave the same mark.
TEST(Context, TrustsNoMarkOfAFileThatWasChangedJustNow) {
  Papers papers;
  papers.revoke({7});
  EXPECT_FALSE(mark_of(papers.config.crl_path).settled);
  EXPECT_TRUE(mark_of("/bin/sh").settled);
  EXPECT_EQ(mark_of(papers.path("nothing")), FileMark());
}

TEST(Context, WarnsOfWhatExpiresSoon) {
  Papers papers;
  const Validity soon{-std::chrono::hours(1), std::chrono::hours(24 * 30 + 1)};
  papers.issue(Role::kServer, {.name = "soon", .validity = soon});
  papers.revoke({}, {-std::chrono::hours(1), std::chrono::hours(49)});
  auto context = papers.context(Role::kServer);
  ASSERT_TRUE(context) << context.error().what;
  auto warnings = (*context)->warnings();
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_TRUE(has(warnings[0], "server's certificate (server_cert_path), CN = soon, expires at"));
  EXPECT_TRUE(has(warnings[0], ", in 30 days: renew it")) << warnings[0];
  EXPECT_TRUE(has(warnings[1], "revocation list (crl_path) expires at")) << warnings[1];
  // The certificate has thirty days left, not fewer.
  papers.config.cert_expire_warning_time_in_day = 30;
  EXPECT_EQ((*papers.context(Role::kServer))->warnings().size(), 1U);
  papers.config.cipher_list = "nonsense:ECDHE-ECDSA-AES256-GCM-SHA384";
  EXPECT_TRUE(
      has((*papers.context(Role::kServer))->warnings()[1], "'nonsense', which is no cipher"));
}

TEST(Context, TakesARenewedCertificateAndKeepsTheFormerOneIfItIsNotSound) {
  Papers papers;
  const auto server = *papers.context(Role::kServer);
  const auto client = *papers.context(Role::kClient);
  const auto shown = [&] {
    auto one = server->begin();
    auto other = client->begin();
    const auto meeting = meet(one->get(), other->get());
    EXPECT_TRUE(meeting.agreed()) << meeting.server_refusal << meeting.client_refusal;
    return subject_of(CertificatePtr(SSL_get1_peer_certificate(other->get())).get());
  };
  std::vector<std::string> said;
  server->say_by([&](const std::string& text) { said.push_back(text); });
  EXPECT_EQ(shown(), "CN = the-server");
  papers.issue(Role::kServer, {.name = "renewed", .roles = {}, .hosts = {"localhost"}});
  EXPECT_EQ(shown(), "CN = renewed");
  EXPECT_TRUE(said.empty()) << said.front();
  papers.write("server.p12", "half of a certif");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(shown(), "CN = renewed");
  ASSERT_EQ(said.size(), 1U) << "once";
  EXPECT_TRUE(has(said[0], papers.path("server.p12"))) << said[0];
  EXPECT_TRUE(has(said[0], "is damaged, or no PKCS#12 file")) << said[0];
  papers.issue(Role::kServer,
               {.name = "expired", .roles = {}, .hosts = {"localhost"}, .validity = kPast});
  EXPECT_EQ(shown(), "CN = renewed");
  ASSERT_EQ(said.size(), 2U);
  EXPECT_TRUE(has(said[1], "has expired at")) << said[1];
  papers.issue(Role::kServer, {.name = "renewed again", .roles = {}, .hosts = {"localhost"}});
  EXPECT_EQ(shown(), "CN = renewed again");
  papers.write("server.p12", "half of a certif");
  EXPECT_EQ(shown(), "CN = renewed again");
  ASSERT_EQ(said.size(), 3U) << "it was good meanwhile";
}

// As if this process had no descriptor left.
class WithoutDescriptors {
 public:
  WithoutDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &former_), 0);
    const rlimit none{0, former_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  WithoutDescriptors(WithoutDescriptors&&) = delete;
  ~WithoutDescriptors() { ::setrlimit(RLIMIT_NOFILE, &former_); }

 private:
  rlimit former_{};
};

// Waits until the mark would show a change of the file.
void settle(const std::string& path) {
  while (!mark_of(path).settled) std::this_thread::yield();
}

// The certificate of a connection that begins now, or why none begins.
std::string shown_by(Context& context, Instant now) {
  const auto ssl = context.begin(now);
  return ssl ? subject_of(SSL_get_certificate(ssl->get())) : ssl.error().what;
}

TEST(Context, LooksAgainAtARenewedCertificateThatItCouldNotTake) {
  using std::chrono::seconds;
  Papers papers;
  const auto server = *papers.context(Role::kServer);
  papers.issue(Role::kServer, {.name = "renewed", .roles = {}, .hosts = {}});
  const auto renewed = *os::read_file(papers.path("server.p12"));
  papers.issue(Role::kServer, {.name = "the-server", .roles = {}, .hosts = {}});
  settle(papers.path("crl.pem"));
  settle(papers.path("server.p12"));
  EXPECT_EQ(shown_by(*server, Instant{}), "CN = the-server");
  papers.write("server.p12", renewed);
  settle(papers.path("server.p12"));
  std::vector<std::string> said;
  server->say_by([&](const std::string& text) { said.push_back(text); });
  {
    const WithoutDescriptors none;
    EXPECT_EQ(shown_by(*server, Instant{}), "CN = the-server");
  }
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(has(said[0], "Too many open files")) << said[0];
  EXPECT_EQ(shown_by(*server, Instant{seconds(59)}), "CN = the-server") << "not at each connection";
  EXPECT_EQ(shown_by(*server, Instant{seconds(60)}), "CN = renewed");
  EXPECT_EQ(said.size(), 1U);
}

TEST(Context, TakesARenewedCertificateAsSoonAsItsAuthorityIsTrusted) {
  Papers papers;
  Papers other("another");
  other.issue(Role::kServer, {.name = "of another", .roles = {}, .hosts = {}});
  const auto server = *papers.context(Role::kServer);
  papers.write("server.p12", *os::read_file(other.path("server.p12")));
  settle(papers.path("server.p12"));
  EXPECT_EQ(shown_by(*server, Instant{}), "CN = the-server");
  for (const char* name : {"ca.crt", "crl.pem"}) {
    papers.write(name, *os::read_file(papers.path(name)) + *os::read_file(other.path(name)));
  }
  EXPECT_EQ(shown_by(*server, Instant{}), "CN = of another");
}

TEST(Context, RefusesNobodyAnyMoreOnceItHasADescriptorForTheList) {
  Papers papers;
  const auto server = *papers.context(Role::kServer);
  papers.revoke({7});
  settle(papers.path("crl.pem"));
  {
    const WithoutDescriptors none;
    EXPECT_TRUE(has(shown_by(*server, Instant{}), "Too many open files"));
  }
  EXPECT_EQ(shown_by(*server, Instant{}), "CN = the-server");
}

// Not even in a process that makes no connection any more.
TEST(Context, WarnsNotOfACertificateThatWasRenewed) {
  using std::chrono::hours;
  Papers papers;
  papers.issue(Role::kClient, {.name = "soon", .validity = {-hours(1), hours(50)}});
  const auto client = *papers.context(Role::kClient);
  std::vector<std::string> said;
  client->say_by([&](const std::string& text) { said.push_back(text); });
  client->remind(Instant{});
  client->remind(Instant{hours(24)});
  ASSERT_EQ(said.size(), 1U);
  EXPECT_TRUE(has(said[0], "CN = soon, expires at")) << said[0];
  papers.issue(Role::kClient, {.name = "renewed", .roles = {}, .hosts = {}});
  client->remind(Instant{hours(48)});
  EXPECT_EQ(said.size(), 1U) << said.back();
  papers.write("crl.pem", "half a list");
  client->remind(Instant{hours(72)});
  ASSERT_EQ(said.size(), 2U);
  EXPECT_TRUE(has(said[1], "no connection can begin under TLS now")) << said[1];
  EXPECT_TRUE(has(said[1], papers.path("crl.pem"))) << said[1];
}

TEST(Context, RemindsOnceADayOfWhatExpires) {
  Papers papers;
  papers.issue(Role::kServer,
               {.name = "soon", .validity = {-std::chrono::hours(1), std::chrono::hours(50)}});
  const auto server = *papers.context(Role::kServer);
  std::vector<std::string> said;
  server->say_by([&](const std::string& text) { said.push_back(text); });
  for (int hour = 0; hour <= 72; ++hour) server->remind(Instant{std::chrono::hours(hour)});
  ASSERT_EQ(said.size(), 3U);
  EXPECT_TRUE(has(said[2], "CN = soon, expires at")) << said[2];
}

// Else each stranger that connects would have the list read, however large it is.
TEST(Context, ReadsADamagedListOnceForEachChange) {
  Papers papers;
  const auto server = *papers.context(Role::kServer);
  const auto list = *os::read_file(papers.path("crl.pem"));
  papers.write("crl.pem", "half a list");
  settle(papers.path("crl.pem"));
  const os::Fd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(watch.get(), papers.path("crl.pem").c_str(), IN_OPEN), 0);
  const auto was_opened = [&] {
    alignas(inotify_event) char events[4096];
    return ::read(watch.get(), events, sizeof events) > 0;
  };
  const auto first = server->begin();
  ASSERT_FALSE(first);
  EXPECT_TRUE(was_opened());
  for (int i = 0; i < 3; ++i) {
    const auto again = server->begin();
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().what, first.error().what);
  }
  EXPECT_FALSE(was_opened());
  papers.write("crl.pem", list);
  EXPECT_TRUE(server->begin());
}

}  // namespace
}  // namespace holdfast::tls
