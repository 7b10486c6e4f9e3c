// Token: what only the processes of a job know, and prove to each other that they know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace holdfast::link {

inline constexpr std::size_t kMacBytes = 32;

// What a proof is for. Each has a key of its own, so none can serve as another.
enum class Purpose : std::uint8_t {
  kMayBeginTls,
  kIsClient,
  kIsServer,
  kClientComplains,  // The client can not begin TLS.
  kServerComplains,
};

// The keys of a token are derived once, since a scheduler proves itself to thousands at a time.
// Copies share them. Thread-safe.
class Token {
 public:
  Token() = default;             // No token yet: it can prove nothing.
  Token(std::string_view text);  // NOLINT(google-explicit-constructor): it is that text.
  Token(const std::string& text) : Token(std::string_view(text)) {}  // NOLINT
  Token(const char* text) : Token(std::string_view(text)) {}         // NOLINT

  // HMAC-SHA-256 of `text` by the key of the purpose.
  [[nodiscard]] std::string proof(Purpose purpose, std::string_view text) const;

 private:
  struct Keys;
  std::shared_ptr<const Keys> keys_;
};

// The key that a token gives for one purpose: HKDF-SHA-256 (RFC 5869) without a salt.
[[nodiscard]] std::string key_for(std::string_view purpose, std::string_view token);

}  // namespace holdfast::link
