// Judges a cipher_list: what of it is used, what does not exist, what is too weak.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace holdfast::tls {

// The ciphers for which an empty list stands, the best first.
inline constexpr std::string_view kSoundCiphers =
    "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:"
    "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256";

struct Ciphers {
  std::string tls12;                  // OpenSSL's names, with ':' between. Empty: no TLS 1.2.
  std::string tls13;                  // The same for TLS 1.3.
  std::vector<std::string> warnings;  // Sentences that name each entry that counts for nothing.
};

// An entry is the name of one cipher. It counts if a certificate can be used with it, the key is
// exchanged anew for each connection (ECDHE, DHE), and it is authenticated (GCM, CCM,
// CHACHA20-POLY1305). TLS 1.3 may use the ciphers of these entries as well: AES128-GCM allows
// TLS_AES_128_GCM_SHA256.
//
// Errors (Blame::kUser): weak entries, each by its name; no entry that counts.
Result<Ciphers> check_ciphers(std::string_view list);

}  // namespace holdfast::tls
