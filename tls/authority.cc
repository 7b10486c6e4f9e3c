#include "tls/authority.h"

#include <openssl/pem.h>
#include <openssl/rand.h>

#include <array>
#include <ctime>

#include "base/text.h"
#include "os/random_bits.h"

namespace holdfast::tls {
namespace {

constexpr int kIterations = 10'000;  // To make a key from a password.

Error cannot_make(std::string_view what) {
  return {Blame::kWorld, cat("can not make ", what, ": ", openssl_reason())};
}

std::time_t from_now(std::chrono::seconds seconds) {
  return std::time(nullptr) + seconds.count();
}

// "DNS:node1,IP:10.0.0.1"
std::string alternative_names(const std::vector<std::string>& hosts) {
  std::string text;
  for (const auto& host : hosts) {
    text += cat(text.empty() ? "" : ",", is_address(host) ? "IP:" : "DNS:", host);
  }
  return text;
}

bool extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// A certificate for `key`, not signed yet. `issuer` null: the certificate issues itself.
CertificatePtr blank(const std::string& name, const Validity& validity, EVP_PKEY* key,
                     X509* issuer) {
  CertificatePtr certificate(X509_new());
  if (!certificate) return {};
  X509* made = certificate.get();
  auto* subject = X509_get_subject_name(made);
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  const auto serial = static_cast<long>(os::random_bits() >> 2 | 1);
  const bool whole =
      X509_set_version(made, X509_VERSION_3) == 1 &&
      ASN1_INTEGER_set(X509_get_serialNumber(made), serial) == 1 &&
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1 &&
      X509_set_issuer_name(made, issuer != nullptr ? X509_get_subject_name(issuer) : subject) ==
          1 &&
      ASN1_TIME_set(X509_getm_notBefore(made), from_now(validity.from)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(made), from_now(validity.until)) != nullptr &&
      X509_set_pubkey(made, key) == 1 &&
      extend(made, issuer != nullptr ? issuer : made, NID_subject_key_identifier, "hash") &&
      extend(made, issuer != nullptr ? issuer : made, NID_authority_key_identifier, "keyid:always");
  return whole ? std::move(certificate) : CertificatePtr();
}

// The bytes that `write` puts into a BIO.
Result<std::string> bytes_of(auto write) {
  const BioPtr out(BIO_new(BIO_s_mem()));
  if (!out || write(out.get()) != 1) return cannot_make("a file");
  char* start = nullptr;
  const auto size = static_cast<std::size_t>(BIO_get_mem_data(out.get(), &start));
  return std::string(start, size);
}

}  // namespace

Result<Authority> Authority::make(const std::string& name, const Validity& validity) {
  KeyPtr key(EVP_EC_gen("P-256"));
  if (!key) return cannot_make("a key");
  auto certificate = blank(name, validity, key.get(), nullptr);
  X509* made = certificate.get();
  const bool whole = made != nullptr &&
                     extend(made, made, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                     extend(made, made, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                     X509_sign(made, key.get(), EVP_sha256()) != 0;
  if (!whole) return cannot_make("an authority");
  return Authority(std::move(certificate), std::move(key));
}

Result<Issued> Authority::issue(const Request& request, const Password& password) const {
  const KeyPtr key(EVP_EC_gen("P-256"));
  if (!key) return cannot_make("a key");
  const auto certificate = blank(request.name, request.validity, key.get(), certificate_.get());
  X509* made = certificate.get();
  X509* issuer = certificate_.get();
  bool whole = made != nullptr &&
               extend(made, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
               extend(made, issuer, NID_key_usage, "critical,digitalSignature");
  if (!request.roles.empty())
    whole = whole && extend(made, issuer, NID_ext_key_usage, request.roles);
  if (!request.hosts.empty()) {
    whole = whole && extend(made, issuer, NID_subject_alt_name, alternative_names(request.hosts));
  }
  if (!whole || X509_sign(made, key_.get(), EVP_sha256()) == 0) return cannot_make("a certificate");
  const std::unique_ptr<PKCS12, Freer<PKCS12_free>> file(
      PKCS12_create(password.text(), request.name.c_str(), key.get(), made, nullptr, 0, 0,
                    kIterations, kIterations, 0));
  if (!file) return cannot_make("a PKCS#12 file");
  auto bytes = bytes_of([&](BIO* out) { return i2d_PKCS12_bio(out, file.get()); });
  if (!bytes) return bytes.error();
  return Issued{std::move(*bytes), ASN1_INTEGER_get(X509_get0_serialNumber(made))};
}

Result<std::string> Authority::revocation_list(const std::set<long>& serials,
                                               const Validity& validity) const {
  using TimePtr = std::unique_ptr<ASN1_TIME, Freer<ASN1_TIME_free>>;
  const CrlPtr list(X509_CRL_new());
  const TimePtr from(ASN1_TIME_set(nullptr, from_now(validity.from)));
  const TimePtr until(ASN1_TIME_set(nullptr, from_now(validity.until)));
  bool whole =
      list && from && until && X509_CRL_set_version(list.get(), X509_CRL_VERSION_2) == 1 &&
      X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(certificate_.get())) == 1 &&
      X509_CRL_set1_lastUpdate(list.get(), from.get()) == 1 &&
      X509_CRL_set1_nextUpdate(list.get(), until.get()) == 1;
  for (const long serial : serials) {
    std::unique_ptr<X509_REVOKED, Freer<X509_REVOKED_free>> entry(X509_REVOKED_new());
    const std::unique_ptr<ASN1_INTEGER, Freer<ASN1_INTEGER_free>> number(ASN1_INTEGER_new());
    whole = whole && entry && number && ASN1_INTEGER_set(number.get(), serial) == 1 &&
            X509_REVOKED_set_serialNumber(entry.get(), number.get()) == 1 &&
            X509_REVOKED_set_revocationDate(entry.get(), from.get()) == 1 &&
            X509_CRL_add0_revoked(list.get(), entry.get()) == 1;
    if (whole) (void)entry.release();
  }
  if (!whole || X509_CRL_sign(list.get(), key_.get(), EVP_sha256()) == 0) {
    return cannot_make("a revocation list");
  }
  return bytes_of([&](BIO* out) { return PEM_write_bio_X509_CRL(out, list.get()); });
}

Result<std::string> Authority::certificate() const {
  return bytes_of([&](BIO* out) { return PEM_write_bio_X509(out, certificate_.get()); });
}

Result<std::string> Authority::key() const {
  return bytes_of([&](BIO* out) {
    return PEM_write_bio_PrivateKey(out, key_.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

Result<Password> random_password() {
  std::array<unsigned char, 24> bits{};
  std::array<char, 2 * bits.size() + 1> text{};
  if (RAND_bytes(bits.data(), static_cast<int>(bits.size())) != 1 ||
      OPENSSL_buf2hexstr_ex(text.data(), text.size(), nullptr, bits.data(), bits.size(), '\0') !=
          1) {
    return cannot_make("a password");
  }
  return Password(text.data());
}

}  // namespace holdfast::tls
