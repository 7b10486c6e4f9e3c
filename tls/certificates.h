// Reads certificates, keys, authorities and revocation lists, and says what is wrong with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tls/file.h"
#include "tls/openssl.h"
#include "tls/password.h"

namespace holdfast::tls {

// The certificate and key with which a process proves itself.
struct Identity {
  std::string path;
  CertificatePtr certificate;
  KeyPtr key;
  std::vector<CertificatePtr> chain;  // Sent along with the certificate; not trusted.
};

// The authorities that are trusted, and what they have revoked.
struct Trust {
  std::vector<CertificatePtr> authorities;
  std::vector<CrlPtr> revoked;
  std::string revoked_bytes;  // The file of crl_path, and its mark.
  FileMark revoked_mark;
};

// Reads the PKCS#12 file of a role.
//
// Errors (Blame::kUser) name the file: as of read_file(); damaged; a wrong password; no key or no
// certificate in it; encrypted in a way that OpenSSL 3 has given up.
Result<Identity> read_identity(const std::string& path, Role role, const Password& password);

// Reads the authorities, and their revocation lists if `crl_path` is not empty. An expired list is
// an error: what it does not name yet may be revoked meanwhile.
Result<Trust> read_trust(const std::string& ca_path, const std::string& crl_path);

// A store against which OpenSSL checks a peer.
Result<StorePtr> store_of(const Trust& trust);

// Checks a certificate of this process as its peers will: authority, validity, revocation, role,
// strength.
Status check_identity(const Identity& identity, Role role, const Trust& trust);

// Sentences about what expires within `days`: the certificate, an authority; or, within a week, a
// revocation list.
std::vector<std::string> expiry_warnings(const Identity& identity, Role role, const Trust& trust,
                                         int days);

}  // namespace holdfast::tls
