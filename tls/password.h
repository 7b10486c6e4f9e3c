// Password: what opens a certificate's key. It is wiped when it is not needed any more.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/settings.h"
#include "tls/openssl.h"

namespace holdfast::tls {

class Password {
 public:
  explicit Password(std::string_view text) : bytes_(text.begin(), text.end()) {
    bytes_.push_back('\0');
  }
  Password(Password&&) noexcept = default;
  Password& operator=(Password&&) = delete;
  ~Password() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

  // The text as OpenSSL takes it. It must be in no message.
  [[nodiscard]] const char* text() const { return bytes_.data(); }

 private:
  std::vector<char> bytes_;  // Moved without a copy, unlike a short std::string.
};

// The password of the server's or the client's certificate: from HOLDFAST_TLS_<ROLE>_PASSWORD,
// which is taken out of `environment` (see config::take_secret), else from the file that
// HOLDFAST_TLS_<ROLE>_PASSWORD_FILE names, else asked for on the terminal.
//
// Errors (Blame::kUser): both are set, the file is not this user's alone, it is empty, or nothing
// is set and there is no terminal.
Result<Password> password_of(Role role, const config::Settings& settings, char** environment);

// Asks on the terminal, without echo; twice if it is a new one. `what` names what it opens.
Result<Password> ask_password(std::string_view what, bool is_new);

}  // namespace holdfast::tls
