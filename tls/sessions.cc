#include "tls/sessions.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace holdfast::tls {
namespace {

using SessionPtr = std::unique_ptr<SSL_SESSION, Freer<SSL_SESSION_free>>;

constexpr std::int64_t kLongest = std::int64_t{7} * 24 * 3600;  // RFC 8446, 4.6.1.
constexpr std::size_t kMostHosts = 16;  // Hosts with which a client keeps sessions.

// The sessions of one SSL_CTX. Any thread may have one of its SSLs.
struct Kept {
  std::int64_t list_until = std::numeric_limits<std::int64_t>::max();  // Seconds since 1970.
  struct Entry {
    SessionPtr session;
    std::int64_t until;
  };
  std::mutex mutex;
  std::map<std::string, Entry> by_host;  // Under the mutex.
};

int kept_index() {
  static const int index = SSL_CTX_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* kept, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<Kept*>(kept);
      });
  return index;
}

Kept& kept_of(SSL* ssl) {
  return *static_cast<Kept*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), kept_index()));
}

std::int64_t now() {
  return std::time(nullptr);
}

std::int64_t seconds(const ASN1_TIME* time) {
  int days = 0;
  int rest = 0;
  if (ASN1_TIME_diff(&days, &rest, nullptr, time) != 1) return 0;
  return now() + std::int64_t{days} * 24 * 3600 + rest;
}

// Until when the peer that was just checked in full is good, in seconds since 1970.
std::int64_t good_until(SSL* ssl) {
  std::int64_t until = std::min(now() + kLongest, kept_of(ssl).list_until);
  const auto* chain = SSL_get0_verified_chain(ssl);
  if (sk_X509_num(chain) <= 0) return 0;
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    until = std::min(until, seconds(X509_get0_notAfter(sk_X509_value(chain, i))));
  }
  return until;
}

int write_into_ticket(SSL* ssl, void*) {
  const std::int64_t until = good_until(ssl);
  return SSL_SESSION_set1_ticket_appdata(SSL_get_session(ssl), &until, sizeof until);
}

// A good ticket stays in use: to give out another one costs a third of what resuming does.
SSL_TICKET_RETURN accept_ticket(SSL* ssl, SSL_SESSION* session, const unsigned char*, std::size_t,
                                SSL_TICKET_STATUS status, void*) {
  if (status != SSL_TICKET_SUCCESS && status != SSL_TICKET_SUCCESS_RENEW) {
    return SSL_TICKET_RETURN_IGNORE_RENEW;
  }
  void* said = nullptr;
  std::size_t size = 0;
  std::int64_t until = 0;
  if (SSL_SESSION_get0_ticket_appdata(session, &said, &size) == 1 && size == sizeof until) {
    std::memcpy(&until, said, size);
  }
  if (now() >= until) return SSL_TICKET_RETURN_IGNORE_RENEW;
  (void)SSL_set_num_tickets(ssl, 0);
  return SSL_TICKET_RETURN_USE;
}

// The host that a client has called, as require_host() has set it.
std::string host_of(SSL* ssl) {
  auto* wanted = SSL_get0_param(ssl);
  if (const char* name = X509_VERIFY_PARAM_get0_host(wanted, 0); name != nullptr) return name;
  char* address = X509_VERIFY_PARAM_get1_ip_asc(wanted);
  std::string text = address != nullptr ? address : "";
  OPENSSL_free(address);
  return text;
}

// OpenSSL resumes no session whose connection ended without a goodbye, as that of a scheduler which
// was killed. So what is kept, and what is offered, are copies.
SessionPtr copy_of(const SSL_SESSION* session) {
  return SessionPtr(SSL_SESSION_dup(session));
}

int keep(SSL* ssl, SSL_SESSION* session) {
  const std::string host = host_of(ssl);
  Kept& kept = kept_of(ssl);
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_host.find(host);
  const bool is_there = found != kept.by_host.end();
  const bool is_new = SSL_session_reused(ssl) == 0;  // Else no certificate was checked anew.
  if (is_new && !host.empty() && (is_there || kept.by_host.size() < kMostHosts)) {
    kept.by_host.insert_or_assign(host, Kept::Entry{copy_of(session), good_until(ssl)});
  }
  return 0;  // OpenSSL keeps its own.
}

void append(std::vector<unsigned char>& bytes, std::string_view text) {
  const std::uint64_t size = text.size();
  const auto* of_size = reinterpret_cast<const unsigned char*>(&size);
  bytes.insert(bytes.end(), of_size, of_size + sizeof size);
  bytes.insert(bytes.end(), text.begin(), text.end());
}

void append(std::vector<unsigned char>& bytes, X509* certificate) {
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate, &der);
  if (size <= 0) return;
  append(bytes, std::string_view(reinterpret_cast<const char*>(der), static_cast<unsigned>(size)));
  OPENSSL_free(der);
}

}  // namespace

bool keep_sessions(SSL_CTX* context, Role role, const Trust& trust) {
  auto* kept = new Kept;
  for (const auto& list : trust.revoked) {
    const auto* until = X509_CRL_get0_nextUpdate(list.get());
    if (until != nullptr) kept->list_until = std::min(kept->list_until, seconds(until));
  }
  if (SSL_CTX_set_ex_data(context, kept_index(), kept) != 1) {
    delete kept;
    return false;
  }
  SSL_CTX_set_timeout(context, kLongest);
  if (role == Role::kClient) {
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, keep);
    return true;
  }
  // Clients keep the sessions: a server holds nothing of clients that are gone.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  return SSL_CTX_set_num_tickets(context, 1) == 1 &&
         SSL_CTX_set_session_ticket_cb(context, write_into_ticket, accept_ticket, nullptr) == 1;
}

bool seal_tickets(SSL_CTX* context, const std::string& secret, const std::string& good_for) {
  const std::unique_ptr<EVP_KDF, Freer<EVP_KDF_free>> hkdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, Freer<EVP_KDF_CTX_free>> derive(EVP_KDF_CTX_new(hkdf.get()));
  std::string digest = "SHA256";
  std::string from = secret;
  std::string about = "holdfast: TLS tickets" + good_for;
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, from.data(), from.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, about.data(), about.size()),
      OSSL_PARAM_construct_end()};
  const long size = SSL_CTX_get_tlsext_ticket_keys(context, nullptr, 0);
  std::vector<unsigned char> keys(static_cast<std::size_t>(size));
  const bool set = derive != nullptr &&
                   EVP_KDF_derive(derive.get(), keys.data(), keys.size(), parameters) == 1 &&
                   SSL_CTX_set_tlsext_ticket_keys(context, keys.data(), size) == 1;
  OPENSSL_cleanse(keys.data(), keys.size());
  OPENSSL_cleanse(from.data(), from.size());
  return set;
}

std::string digest_of(const Trust& trust, const Identity& identity, std::string_view ciphers) {
  std::vector<unsigned char> all;
  append(all, ciphers);
  append(all, identity.certificate.get());
  for (const auto& authority : trust.authorities) append(all, authority.get());
  append(all, trust.revoked_bytes);
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  EVP_Digest(all.data(), all.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
             EVP_sha256(), nullptr);
  digest.resize(size);
  return digest;
}

void offer_session(SSL* ssl) {
  Kept& kept = kept_of(ssl);
  const std::lock_guard lock(kept.mutex);
  const auto found = kept.by_host.find(host_of(ssl));
  if (found == kept.by_host.end()) return;
  if (now() < found->second.until) {
    (void)SSL_set_session(ssl, copy_of(found->second.session.get()).get());
  } else {
    kept.by_host.erase(found);
  }
  ERR_clear_error();
}

}  // namespace holdfast::tls
