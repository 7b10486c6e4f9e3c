#include "link/token.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <array>

#include "base/assert.h"
#include "base/text.h"

namespace holdfast::link {
namespace {

// OpenSSL does not end at exit(): the control thread may prove itself to a scheduler just then.
[[maybe_unused]] const int kOutlivesExit = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

constexpr std::array<std::string_view, 5> kPurposes = {
    "holdfast 2: may begin TLS",
    "holdfast 2: client",
    "holdfast 2: server",
    "holdfast 2: client can not begin TLS",
    "holdfast 2: server can not begin TLS",
};

struct FreeMac {
  void operator()(EVP_MAC* mac) const { EVP_MAC_free(mac); }
  void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
using Keyed = std::unique_ptr<EVP_MAC_CTX, FreeMac>;

// A context with the key, to be copied for each text.
Keyed keyed_by(std::string_view key) {
  const std::unique_ptr<EVP_MAC, FreeMac> hmac(EVP_MAC_fetch(nullptr, "HMAC", nullptr));
  Keyed context(EVP_MAC_CTX_new(hmac.get()));
  char digest[] = "SHA256";
  const std::array<OSSL_PARAM, 2> parameters = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_end()};
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  HF_ASSERT(context != nullptr &&
            EVP_MAC_init(context.get(), bytes, key.size(), parameters.data()) == 1);
  return context;
}

std::string mac(const Keyed& by, std::string_view text) {
  const Keyed context(EVP_MAC_CTX_dup(by.get()));
  std::string out(kMacBytes, '\0');
  std::size_t size = 0;
  const bool made =
      context != nullptr &&
      EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size()) == 1 &&
      EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(out.data()), &size,
                    out.size()) == 1;
  HF_ASSERT(made && size == kMacBytes);
  return out;
}

}  // namespace

std::string key_for(std::string_view purpose, std::string_view token) {
  const std::string extracted = mac(keyed_by(std::string(kMacBytes, '\0')), token);
  return mac(keyed_by(extracted), cat(purpose, '\1'));
}

struct Token::Keys {
  std::array<Keyed, kPurposes.size()> of;
};

Token::Token(std::string_view text) {
  auto keys = std::make_shared<Keys>();
  for (std::size_t i = 0; i < kPurposes.size(); ++i) {
    keys->of.at(i) = keyed_by(key_for(kPurposes.at(i), text));
  }
  keys_ = std::move(keys);
}

std::string Token::proof(Purpose purpose, std::string_view text) const {
  HF_ASSERT(keys_ != nullptr);
  return mac(keys_->of.at(static_cast<std::size_t>(purpose)), text);
}

}  // namespace holdfast::link
