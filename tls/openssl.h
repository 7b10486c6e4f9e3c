// OpenSSL's objects with owners, and what they say in words.
#pragma once

#include <openssl/evp.h>
#include <openssl/pkcs12.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <string_view>

namespace holdfast::tls {

template <auto Free>
struct Freer {
  void operator()(auto* object) const { Free(object); }
};
using BioPtr = std::unique_ptr<BIO, Freer<BIO_free>>;
using CertificatePtr = std::unique_ptr<X509, Freer<X509_free>>;
using CrlPtr = std::unique_ptr<X509_CRL, Freer<X509_CRL_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Freer<X509_STORE_free>>;
using SslPtr = std::unique_ptr<SSL, Freer<SSL_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, Freer<SSL_CTX_free>>;

// What a process is to its peer. Its certificate has to be made for that.
enum class Role : std::uint8_t { kServer, kClient };

// What OpenSSL asks of keys and signatures: RSA of 2048 bits, SHA-2.
inline constexpr int kSecurityLevel = 2;

// Whether a host is given by its IPv4 or IPv6 address.
bool is_address(const std::string& host);

// "server", "client".
std::string_view name_of(Role role);

// A BIO that reads `bytes`, which must outlive it.
BioPtr reader_of(std::string_view bytes);

// OpenSSL's reason for its newest error in this thread, e.g. "wrong tag". Forgets all its errors.
std::string openssl_reason();

// The subject of a certificate, "CN = worker". Printable, and at most 200 characters, since a peer
// chooses it.
std::string subject_of(const X509* certificate);

// "2026-11-25 13:00:00 UTC"
std::string in_words(const ASN1_TIME* time);

// Whole days from now until then; below 0: it has passed.
int days_until(const ASN1_TIME* time);

// Why OpenSSL refused a certificate for `role`, by the number of its error, and what to do. The
// text follows a name of the certificate: "has expired at ...: renew it". The certificate may be
// null.
std::string in_words(long verify_error, const X509* certificate, Role role);

}  // namespace holdfast::tls
