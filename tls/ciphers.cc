#include "tls/ciphers.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"
#include "tls/openssl.h"

namespace holdfast::tls {
namespace {

struct Suite13 {
  std::string_view name;
  std::string_view cipher;  // Part of the names of the TLS 1.2 ciphers that are the same.
};
constexpr std::array kSuites13 = {Suite13{"TLS_AES_256_GCM_SHA384", "-AES256-GCM-"},
                                  Suite13{"TLS_CHACHA20_POLY1305_SHA256", "-CHACHA20-POLY1305"},
                                  Suite13{"TLS_AES_128_GCM_SHA256", "-AES128-GCM-"},
                                  Suite13{"TLS_AES_128_CCM_SHA256", "-AES128-CCM"}};

constexpr std::size_t kLongestName = 80;  // How much of an unknown entry an error shows.

// Parts of the names of ciphers that this OpenSSL may be built without, and which are weak.
constexpr std::array<std::string_view, 10> kWeakParts = {"RC4",  "RC2",  "DES-", "3DES",   "MD5",
                                                         "NULL", "EXP-", "ADH-", "AECDH-", "CCM_8"};

enum class Verdict : std::uint8_t { kUsed, kUnknown, kNoCertificate, kWeak };

// Every cipher of this OpenSSL, also those that it would not use by itself.
std::map<std::string, Verdict, std::less<>> known_ciphers() {
  const SslContextPtr context(SSL_CTX_new(TLS_method()));
  std::map<std::string, Verdict, std::less<>> known;
  if (!context || SSL_CTX_set_cipher_list(context.get(), "ALL:COMPLEMENTOFALL:@SECLEVEL=0") != 1) {
    return known;
  }
  const auto* ciphers = SSL_CTX_get_ciphers(context.get());
  for (int i = 0; i < sk_SSL_CIPHER_num(ciphers); ++i) {
    const auto* cipher = sk_SSL_CIPHER_value(ciphers, i);
    const std::string name = SSL_CIPHER_get_name(cipher);
    const int exchange = SSL_CIPHER_get_kx_nid(cipher);
    const int proof = SSL_CIPHER_get_auth_nid(cipher);
    const bool shared_key = exchange == NID_kx_ecdhe_psk || exchange == NID_kx_dhe_psk;
    const bool fresh = shared_key || exchange == NID_kx_ecdhe || exchange == NID_kx_dhe;
    const bool certified = proof == NID_auth_rsa || proof == NID_auth_ecdsa;
    const bool named_so = proof == NID_auth_psk || proof == NID_auth_dss;
    if (name.starts_with("TLS_")) continue;  // TLS 1.3: kSuites13 has them.
    const bool weak = !fresh || SSL_CIPHER_is_aead(cipher) != 1 || name.ends_with("CCM8") ||
                      (!certified && !named_so);
    known[name] = weak ? Verdict::kWeak : certified ? Verdict::kUsed : Verdict::kNoCertificate;
  }
  for (const auto& suite : kSuites13) known[std::string(suite.name)] = Verdict::kUsed;
  return known;
}

Verdict verdict_on(const std::map<std::string, Verdict, std::less<>>& known,
                   std::string_view entry) {
  const auto found = known.find(entry);
  if (found != known.end()) return found->second;
  const bool command = entry.find_first_of("!+-@") == 0;  // OpenSSL's, as "!aNULL".
  const bool weak =
      !command && std::any_of(kWeakParts.begin(), kWeakParts.end(), [&](std::string_view part) {
        return entry.find(part) != std::string_view::npos;
      });
  return weak ? Verdict::kWeak : Verdict::kUnknown;
}

std::string unknown_words(const std::map<std::string, Verdict, std::less<>>& known,
                          std::string_view entry) {
  std::string words = cat("cipher_list has '", entry.substr(0, kLongestName),
                          "', which is no cipher of this OpenSSL and counts for nothing");
  for (const auto& [name, verdict] : known) {
    const bool alike = verdict == Verdict::kUsed && edit_distance(name, entry) <= 2;
    if (alike) return cat(words, "; is '", name, "' meant?");
  }
  return words;
}

void add(std::string& list, std::string_view name) {
  const std::string entry = cat(':', name, ':');
  if (cat(':', list, ':').find(entry) != std::string::npos) return;
  if (!list.empty()) list += ':';
  list += name;
}

}  // namespace

Result<Ciphers> check_ciphers(std::string_view list) {
  const auto known = known_ciphers();
  if (list.empty()) list = kSoundCiphers;
  Ciphers ciphers;
  std::string weak;
  std::string without;  // Entries that use no certificate.
  for (std::size_t from = 0; from <= list.size();) {
    const auto end = std::min(list.find(':', from), list.size());
    const std::string_view entry = list.substr(from, end - from);
    from = end + 1;
    if (entry.empty()) continue;
    switch (verdict_on(known, entry)) {
      case Verdict::kUsed:
        if (!entry.starts_with("TLS_")) add(ciphers.tls12, entry);
        for (const auto& suite : kSuites13) {
          const bool same = entry.find(suite.cipher) != std::string_view::npos;
          if (entry == suite.name || same) add(ciphers.tls13, suite.name);
        }
        break;
      case Verdict::kUnknown:
        ciphers.warnings.push_back(unknown_words(known, entry));
        break;
      case Verdict::kNoCertificate:
        without += cat(without.empty() ? "" : ", ", entry);
        break;
      case Verdict::kWeak:
        weak += cat(weak.empty() ? "" : ", ", entry);
        break;
    }
  }
  if (!without.empty()) {
    ciphers.warnings.push_back(
        cat("cipher_list has ciphers that take a shared key or a DSA key in place of these "
            "certificates, and count for nothing: ",
            without));
  }
  if (!weak.empty()) {
    return Error{Blame::kUser,
                 cat("cipher_list has weak ciphers: ", weak,
                     ". Take them out: only ECDHE or DHE with GCM, CCM or CHACHA20-POLY1305 is "
                     "sound")};
  }
  if (ciphers.tls12.empty() && ciphers.tls13.empty()) {
    return Error{Blame::kUser,
                 "cipher_list has no cipher that can be used: leave it empty for all that are "
                 "sound, or name ECDHE-ECDSA-AES256-GCM-SHA384 or ECDHE-RSA-AES256-GCM-SHA384"};
  }
  return ciphers;
}

}  // namespace holdfast::tls
