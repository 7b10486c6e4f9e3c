#include "tls/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/pkcs12.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace holdfast::tls {
namespace {

constexpr std::size_t kLargestCertificate = 1 << 20;
constexpr std::size_t kLargestList = 16 << 20;
constexpr std::size_t kMostOfOneFile = 100;
constexpr int kListWarningDays = 7;

Error wrong(std::string_view what, const std::string& path, std::string_view why) {
  return {Blame::kUser, cat(what, ", ", path, ", ", why)};
}

std::string identity_name(Role role) {
  return cat("the ", name_of(role), "'s certificate (", name_of(role), "_cert_path)");
}

// Frees the stack, but not what is in it.
void free_stack(STACK_OF(X509) * stack) {
  sk_X509_free(stack);
}
using StackPtr = std::unique_ptr<STACK_OF(X509), Freer<free_stack>>;

constexpr std::string_view kAuthority = "the authority (ca_cert_path)";
constexpr std::string_view kList = "the revocation list (crl_path)";

// Reads all PEM blocks of one kind: `read` is PEM_read_bio_X509 or its like.
template <class Pointer>
Result<std::vector<Pointer>> read_pem(const std::string& bytes, const std::string& path,
                                      std::string_view what, auto read) {
  const BioPtr reader = reader_of(bytes);
  std::vector<Pointer> found;
  while (found.size() <= kMostOfOneFile) {
    Pointer next(read(reader.get(), nullptr, nullptr, nullptr));
    if (!next) break;
    found.push_back(std::move(next));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = openssl_reason();
  if (found.size() > kMostOfOneFile) return wrong(what, path, "has too many parts");
  if (!at_end) return wrong(what, path, cat("is damaged: ", reason));
  if (found.empty()) return wrong(what, path, "has none: it must be a PEM file of that kind");
  return found;
}

// Checks that an authority has signed the list, and that the list is valid now.
Status check_list(const std::string& path, X509_CRL* list, const Trust& trust) {
  const auto* issuer = X509_CRL_get_issuer(list);
  const auto signer = std::find_if(
      trust.authorities.begin(), trust.authorities.end(), [&](const CertificatePtr& authority) {
        return X509_NAME_cmp(X509_get_subject_name(authority.get()), issuer) == 0 &&
               X509_CRL_verify(list, X509_get0_pubkey(authority.get())) == 1;
      });
  ERR_clear_error();
  if (signer == trust.authorities.end()) {
    return wrong(kList, path, "is not signed by an authority of ca_cert_path");
  }
  const auto* from = X509_CRL_get0_lastUpdate(list);
  const auto* until = X509_CRL_get0_nextUpdate(list);
  if (X509_cmp_current_time(from) > 0) {
    return wrong(
        kList, path,
        cat("is not yet valid, only from ", in_words(from), ": set the clock that is wrong"));
  }
  if (until != nullptr && X509_cmp_current_time(until) < 0) {
    return wrong(kList, path, cat("has expired at ", in_words(until), ": put a newer one there"));
  }
  return {};
}

// The parts of a PKCS#12 file whose password is known to be right.
Result<Identity> take_apart(const std::string& path, Role role, PKCS12* file,
                            const Password& password) {
  EVP_PKEY* key = nullptr;
  X509* certificate = nullptr;
  STACK_OF(X509)* chain = nullptr;
  if (PKCS12_parse(file, password.text(), &key, &certificate, &chain) != 1) {
    return wrong(identity_name(role), path,
                 cat("can not be decrypted: ", openssl_reason(),
                     ". If it is encrypted with RC2 or 3DES, export it anew with OpenSSL 3"));
  }
  Identity identity{path, CertificatePtr(certificate), KeyPtr(key), {}};
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    identity.chain.emplace_back(sk_X509_value(chain, i));
  }
  sk_X509_free(chain);  // The identity owns the certificates that were in it.
  if (!identity.key) return wrong(identity_name(role), path, "has no key");
  if (!identity.certificate) {
    return wrong(identity_name(role), path, "has no certificate for its key");
  }
  return identity;
}

}  // namespace

Result<Identity> read_identity(const std::string& path, Role role, const Password& password) {
  const auto file = read_file(path, identity_name(role), kLargestCertificate, Guard::kShared);
  if (!file) return file.error();
  const BioPtr reader = reader_of(file->bytes);
  const std::unique_ptr<PKCS12, Freer<PKCS12_free>> pkcs12(d2i_PKCS12_bio(reader.get(), nullptr));
  if (!pkcs12) {
    return wrong(identity_name(role), path,
                 cat("is damaged, or no PKCS#12 file: ", openssl_reason()));
  }
  const auto length = static_cast<int>(std::strlen(password.text()));
  if (PKCS12_mac_present(pkcs12.get()) != 1) {
    return wrong(identity_name(role), path, "has no check of its password: export it anew");
  }
  if (PKCS12_verify_mac(pkcs12.get(), password.text(), length) != 1) {
    ERR_clear_error();
    return wrong(identity_name(role), path,
                 "does not open with the password that is set: that is the wrong one, or the file "
                 "was changed after it was made");
  }
  return take_apart(path, role, pkcs12.get(), password);
}

Result<Trust> read_trust(const std::string& ca_path, const std::string& crl_path) {
  const auto file = read_file(ca_path, kAuthority, kLargestCertificate, Guard::kShared);
  if (!file) return file.error();
  auto authorities = read_pem<CertificatePtr>(file->bytes, ca_path, kAuthority, PEM_read_bio_X509);
  if (!authorities) return authorities.error();
  Trust trust{std::move(*authorities), {}, {}, {}};
  for (const auto& authority : trust.authorities) {
    const bool is_authority = X509_check_ca(authority.get()) == 1;
    if (!is_authority) {
      return wrong(kAuthority, ca_path,
                   cat("has a certificate that is no authority's: ", subject_of(authority.get())));
    }
  }
  if (crl_path.empty()) return trust;
  auto list = read_file(crl_path, kList, kLargestList, Guard::kShared);
  if (!list) return list.error();
  auto revoked = read_pem<CrlPtr>(list->bytes, crl_path, kList, PEM_read_bio_X509_CRL);
  if (!revoked) return revoked.error();
  trust.revoked = std::move(*revoked);
  trust.revoked_bytes = std::move(list->bytes);
  trust.revoked_mark = list->mark;
  for (const auto& each : trust.revoked) {
    if (const auto checked = check_list(crl_path, each.get(), trust); !checked) {
      return checked.error();
    }
  }
  return trust;
}

Result<StorePtr> store_of(const Trust& trust) {
  StorePtr store(X509_STORE_new());
  bool whole = store != nullptr;
  for (const auto& authority : trust.authorities) {
    whole = whole && X509_STORE_add_cert(store.get(), authority.get()) == 1;
  }
  for (const auto& list : trust.revoked) {
    whole = whole && X509_STORE_add_crl(store.get(), list.get()) == 1;
  }
  if (!whole) return Error{Blame::kWorld, cat("no store for certificates: ", openssl_reason())};
  if (!trust.revoked.empty()) {  // Then no certificate of a chain may be on a list.
    X509_STORE_set_flags(store.get(), X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
  }
  return store;
}

Status check_identity(const Identity& identity, Role role, const Trust& trust) {
  const auto store = store_of(trust);
  if (!store) return store.error();
  const StackPtr chain(sk_X509_new_null());
  for (const auto& each : identity.chain) sk_X509_push(chain.get(), each.get());
  const std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX_free>> check(X509_STORE_CTX_new());
  X509* certificate = identity.certificate.get();
  if (X509_STORE_CTX_init(check.get(), store->get(), certificate, chain.get()) != 1) {
    return Error{Blame::kWorld, cat("no check of certificates: ", openssl_reason())};
  }
  X509_STORE_CTX_set_purpose(
      check.get(), role == Role::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  X509_VERIFY_PARAM_set_auth_level(X509_STORE_CTX_get0_param(check.get()), kSecurityLevel);
  const bool good = X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  if (good) return {};
  const auto* culprit = X509_STORE_CTX_get_current_cert(check.get());
  const bool own = culprit == nullptr || culprit == certificate;
  const std::string whose = own ? "" : cat("has a chain whose ", subject_of(culprit), ' ');
  return wrong(identity_name(role), identity.path,
               cat(whose, in_words(X509_STORE_CTX_get_error(check.get()), culprit, role)));
}

std::vector<std::string> expiry_warnings(const Identity& identity, Role role, const Trust& trust,
                                         int days) {
  std::vector<std::string> warnings;
  const auto look = [&](std::string_view what, const ASN1_TIME* until, int within) {
    const int left = until == nullptr ? within : days_until(until);
    if (left >= within) return;
    warnings.push_back(cat(what, left < 0 ? " has expired at " : " expires at ", in_words(until),
                           left < 0 ? "" : cat(", in ", left, left == 1 ? " day" : " days"),
                           ": renew it"));
  };
  look(cat(identity_name(role), ", ", subject_of(identity.certificate.get()), ','),
       X509_get0_notAfter(identity.certificate.get()), days);
  for (const auto& authority : trust.authorities) {
    look(cat(kAuthority, ", ", subject_of(authority.get()), ','),
         X509_get0_notAfter(authority.get()), days);
  }
  for (const auto& list : trust.revoked) {
    look(kList, X509_CRL_get0_nextUpdate(list.get()), kListWarningDays);
  }
  return warnings;
}

}  // namespace holdfast::tls
