#include "tls/context.h"

#include <openssl/err.h>

#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "tls/handshake.h"
#include "tls/sessions.h"

namespace holdfast::tls {
namespace {

constexpr long kMostCertificateBytes = 32768;  // Of a peer's chain.
constexpr Duration kBetweenReminders = std::chrono::hours(24);
// How often a list or a certificate that was refused is read again: time alone may make it good.
constexpr Duration kBetweenReads = std::chrono::minutes(1);
constexpr unsigned char kSessions[] = "holdfast";  // Sessions of other servers are not resumed.

Instant steady_now() {
  return Instant{std::chrono::steady_clock::now().time_since_epoch()};
}

bool use_ciphers(SSL_CTX* context, const Ciphers& ciphers) {
  const int lowest = ciphers.tls12.empty() ? TLS1_3_VERSION : TLS1_2_VERSION;
  const int highest = ciphers.tls13.empty() ? TLS1_2_VERSION : TLS1_3_VERSION;
  return SSL_CTX_set_min_proto_version(context, lowest) == 1 &&
         SSL_CTX_set_max_proto_version(context, highest) == 1 &&
         (ciphers.tls12.empty() || SSL_CTX_set_cipher_list(context, ciphers.tls12.c_str()) == 1) &&
         SSL_CTX_set_ciphersuites(context, ciphers.tls13.c_str()) == 1;
}

bool show_identity(SSL_CTX* context, const Identity& identity) {
  bool whole = SSL_CTX_use_certificate(context, identity.certificate.get()) == 1 &&
               SSL_CTX_use_PrivateKey(context, identity.key.get()) == 1 &&
               SSL_CTX_check_private_key(context) == 1;
  for (const auto& each : identity.chain) {
    whole = whole && SSL_CTX_add1_chain_cert(context, each.get()) == 1;
  }
  return whole;
}

}  // namespace

Result<std::shared_ptr<Context>> Context::make(const Config& config, Role role,
                                               const Password& password) {
  ERR_clear_error();  // Forgets errors of earlier calls of OpenSSL in this thread.
  auto ciphers = check_ciphers(config.cipher_list);
  if (!ciphers) return ciphers.error();
  auto trust = read_trust(config.ca_cert_path, config.crl_path);
  if (!trust) return trust.error();
  std::shared_ptr<Context> context(new Context(config, role, std::move(*ciphers), password));
  context->trust_ = std::move(*trust);
  if (const auto used = context->use_identity(steady_now()); !used) return used.error();
  return context;
}

// Takes the certificate in the file if peers will find it sound; else the former one stays.
Status Context::use_identity(Instant now) {
  const auto& path = role_ == Role::kServer ? config_.server_cert_path : config_.client_cert_path;
  const FileMark mark = mark_of(path);
  const bool known = context_ && mark == identity_mark_ && mark.settled;
  if (known && (!refused_since_ || now - *refused_since_ < kBetweenReads)) return {};
  identity_mark_ = mark;
  refused_since_ = now;  // Until it is found to be good.
  auto identity = read_identity(path, role_, password_);
  if (!identity) return identity.error();
  const bool same =
      context_ && X509_cmp(identity->certificate.get(), identity_.certificate.get()) == 0;
  if (same) {
    refused_since_.reset();
    said_.clear();
    return {};
  }
  if (const auto checked = check_identity(*identity, role_, trust_); !checked) return checked;
  auto context = build(trust_, *identity);
  if (!context) return context.error();
  identity_ = std::move(*identity);
  refused_since_.reset();
  said_.clear();
  context_ = std::move(*context);
  return {};
}

// A new SSL_CTX, so that its keys for tickets and its sessions are new as well. Existing
// connections keep theirs.
Result<SslContextPtr> Context::build(const Trust& trust, const Identity& identity) const {
  auto store = store_of(trust);
  if (!store) return store.error();
  SslContextPtr context(SSL_CTX_new(role_ == Role::kServer ? TLS_server_method() : TLS_method()));
  if (!context) return Error{Blame::kWorld, cat("no TLS here: ", openssl_reason())};
  SSL_CTX_set_security_level(context.get(), kSecurityLevel);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
  SSL_CTX_set_dh_auto(context.get(), 1);
  SSL_CTX_set_max_cert_list(context.get(), kMostCertificateBytes);
  SSL_CTX_set_session_id_context(context.get(), kSessions, sizeof kSessions - 1);
  SSL_CTX_set1_cert_store(context.get(), store->get());
  watch_verification(context.get());
  if (!use_ciphers(context.get(), ciphers_) || !show_identity(context.get(), identity) ||
      !keep_sessions(context.get(), role_, trust) ||
      (!secret_.empty() &&
       !seal_tickets(context.get(), secret_,
                     digest_of(trust, identity, cat(ciphers_.tls12, ' ', ciphers_.tls13))))) {
    return Error{Blame::kUser, cat(identity.path, " can not be used: ", openssl_reason())};
  }
  return context;
}

Status Context::keep_sessions_by(const std::string& secret) {
  const std::lock_guard lock(mutex_);
  secret_ = secret;
  auto context = build(trust_, identity_);
  if (!context) return context.error();
  context_ = std::move(*context);
  return {};
}

Status Context::look_at_list(Instant now) {
  if (config_.crl_path.empty()) return {};
  const FileMark mark = mark_of(config_.crl_path);
  if (mark == trust_.revoked_mark && mark.settled) return {};
  const bool known = unusable_ && mark == unusable_->mark && mark.settled;
  if (known && now - unusable_->since < kBetweenReads) return unusable_->why;
  auto trust = read_trust(config_.ca_cert_path, config_.crl_path);
  if (!trust) {
    // kWorld: no descriptor was left, so nothing was read. Trying that again costs nothing.
    if (trust.error().blame == Blame::kUser) unusable_ = {trust.error(), mark, now};
    return trust.error();
  }
  unusable_.reset();
  if (trust->revoked_bytes == trust_.revoked_bytes) {
    trust_.revoked_mark = trust->revoked_mark;
    return {};
  }
  auto context = build(*trust, identity_);
  if (!context) return context.error();
  trust_ = std::move(*trust);
  context_ = std::move(*context);
  // A certificate that the former authorities did not sign may be signed by these.
  identity_mark_ = {};
  return {};
}

Status Context::renew(Instant now) {
  ERR_clear_error();
  const auto looked = look_at_list(now);
  if (looked) {
    if (const auto used = use_identity(now); !used) {
      say_once(cat("a renewed certificate is not taken, and the former one stays in use: ",
                   used.error().what));
    }
  }
  ERR_clear_error();
  return looked;
}

Status Context::look() {
  const std::lock_guard lock(mutex_);
  return renew(steady_now());
}

Result<SslPtr> Context::begin() {
  return begin(steady_now());
}

Result<SslPtr> Context::begin(Instant now) {
  const std::lock_guard lock(mutex_);
  if (const auto renewed = renew(now); !renewed) return renewed.error();
  SslPtr ssl(SSL_new(context_.get()));
  if (!ssl) return Error{Blame::kWorld, cat("no TLS connection: ", openssl_reason())};
  if (role_ == Role::kServer) {
    SSL_set_accept_state(ssl.get());
  } else {
    SSL_set_connect_state(ssl.get());
  }
  return ssl;
}

Result<SslPtr> Context::begin_with(Peer me) {
  HF_ASSERT(role_ == Role::kClient);
  auto ssl = begin();
  if (!ssl) return ssl;
  SSL_set_options(ssl->get(), SSL_OP_NO_TICKET);
  if (me == Peer::kAccepts) {
    SSL_set_accept_state(ssl->get());
    (void)SSL_set_num_tickets(ssl->get(), 0);
  } else if (SSL_set_purpose(ssl->get(), X509_PURPOSE_SSL_CLIENT) != 1 ||
             SSL_set_trust(ssl->get(), X509_TRUST_SSL_CLIENT) != 1) {
    return Error{Blame::kWorld, cat("no TLS connection: ", openssl_reason())};
  }
  return ssl;
}

void Context::say_by(Say say) {
  const std::lock_guard lock(mutex_);
  say_ = std::move(say);
}

void Context::say_once(const std::string& problem) {
  if (std::exchange(said_, problem) != problem && say_) say_(problem);
}

void Context::remind(Instant now) {
  const std::lock_guard lock(mutex_);
  // Else a process that makes no connection would be warned of a certificate that was renewed long
  // ago.
  const auto renewed = renew(now);
  if (!reminded_) reminded_ = now;  // The first day's are said already.
  if (now - *reminded_ < kBetweenReminders) return;
  reminded_ = now;
  if (!say_) return;
  if (!renewed) say_(cat("no connection can begin under TLS now: ", renewed.error().what));
  for (const auto& text :
       expiry_warnings(identity_, role_, trust_, config_.cert_expire_warning_time_in_day)) {
    say_(text);
  }
}

std::vector<std::string> Context::warnings() const {
  const std::lock_guard lock(mutex_);
  auto warnings =
      expiry_warnings(identity_, role_, trust_, config_.cert_expire_warning_time_in_day);
  warnings.insert(warnings.end(), ciphers_.warnings.begin(), ciphers_.warnings.end());
  return warnings;
}

std::string Context::about() const {
  const std::lock_guard lock(mutex_);
  const auto* certificate = identity_.certificate.get();
  return cat(subject_of(certificate), ", valid until ", in_words(X509_get0_notAfter(certificate)));
}

}  // namespace holdfast::tls
