#include "tls/password.h"

#include <fcntl.h>
#include <openssl/crypto.h>

#include <array>

#include "base/text.h"
#include "os/fd.h"
#include "tls/file.h"

namespace holdfast::tls {
namespace {

constexpr std::size_t kLongestPassword = 1024;

Result<Password> from_file(const std::string& path, std::string_view variable) {
  auto file = read_file(path, cat("the file of ", variable), kLongestPassword, Guard::kSecret);
  if (!file) return file.error();
  auto& text = file->bytes;
  const auto end = text.find_first_of(std::string_view("\r\n\0", 3));
  Password password(std::string_view(text).substr(0, end));
  OPENSSL_cleanse(text.data(), text.size());
  if (*password.text() != '\0') return password;
  return Error{Blame::kUser,
               cat("the file of ", variable, ", ", path, ", has no password in its first line")};
}

}  // namespace

Result<Password> ask_password(std::string_view what, bool is_new) {
  // Without a terminal OpenSSL would read from stdin, which may be anything.
  const os::Fd terminal(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!terminal) {
    return Error{Blame::kUser,
                 cat("no password is set for ", what, ", and there is no terminal to ask for it")};
  }
  std::array<char, kLongestPassword + 1> text{};
  const int failed =
      EVP_read_pw_string_min(text.data(), 1, static_cast<int>(text.size()),
                             cat("Password of ", what, ": ").c_str(), is_new ? 1 : 0);
  Password password(text.data());
  OPENSSL_cleanse(text.data(), text.size());
  (void)openssl_reason();
  if (failed != 0) return Error{Blame::kUser, cat("no password was given for ", what)};
  return password;
}

Result<Password> password_of(Role role, const config::Settings& settings, char** environment) {
  const bool server = role == Role::kServer;
  const std::string variable = cat("HOLDFAST_TLS_", server ? "SERVER" : "CLIENT", "_PASSWORD");
  const bool given =
      server ? settings.tls_server_password.given : settings.tls_client_password.given;
  const std::string& path =
      server ? settings.tls_server_password_file : settings.tls_client_password_file;
  if (given) {
    std::string text = config::take_secret(environment, variable);
    if (text.size() > kLongestPassword) {
      return Error{Blame::kUser, cat(variable, " is longer than ", kLongestPassword, " bytes")};
    }
    Password password(text);
    OPENSSL_cleanse(text.data(), text.size());
    if (path.empty()) return password;
    return Error{Blame::kUser, cat(variable, " and ", variable, "_FILE are both set: set one")};
  }
  if (!path.empty()) return from_file(path, cat(variable, "_FILE"));
  auto asked = ask_password(cat("the ", name_of(role), "'s certificate"), false);
  if (asked) return asked;
  return Error{asked.error().blame,
               cat(asked.error().what, ": set ", variable, "_FILE or ", variable)};
}

}  // namespace holdfast::tls
