#include "runtime/agent/passwords.h"

#include <unistd.h>

#include <optional>

#include "base/text.h"
#include "os/files.h"
#include "tls/config.h"
#include "tls/context.h"

namespace holdfast::runtime {
namespace {

using tls::Role;

// The setting that names the role's password file.
std::string config::Settings::*file_of(Role role) {
  return role == Role::kServer ? &config::Settings::tls_server_password_file
                               : &config::Settings::tls_client_password_file;
}

std::string variable_of(Role role) {
  return role == Role::kServer ? "HOLDFAST_TLS_SERVER_PASSWORD" : "HOLDFAST_TLS_CLIENT_PASSWORD";
}

}  // namespace

Result<Passwords> Passwords::take(const config::Settings& settings, bool of_server) {
  Passwords passwords;
  std::optional<tls::Config> config;
  if (!settings.tls_config.empty()) {
    auto read = tls::read_config(settings.tls_config);
    if (!read) return read.error();
    config = *std::move(read);
  }
  for (const Role role : {Role::kClient, Role::kServer}) {
    const bool is_given =
        (role == Role::kServer ? settings.tls_server_password : settings.tls_client_password).given;
    const bool is_needed = config && (role == Role::kClient || of_server);
    if (!is_given && !is_needed) continue;
    auto password = tls::password_of(role, settings, environ);
    if (!password) return password.error();
    if (is_needed) {
      const auto sound = tls::Context::make(*config, role, *password);
      if (!sound) return sound.error();
    }
    if ((settings.*file_of(role)).empty()) passwords.all_.emplace_back(role, *std::move(password));
  }
  return passwords;
}

Status Passwords::leave_in(const std::string& directory, Words& environment,
                           config::Settings& settings) {
  for (const auto& [role, password] : all_) {
    const std::string path = cat(directory, '/', tls::name_of(role), '-', ::getpid(), ".password");
    const auto written = os::write_file_atomically(path, password.text());
    if (!written) return written.error();
    unset(environment, variable_of(role));
    set(environment, variable_of(role) + "_FILE", path);
    settings.*file_of(role) = path;
    (role == Role::kServer ? settings.tls_server_password : settings.tls_client_password) = {};
  }
  all_.clear();
  return {};
}

}  // namespace holdfast::runtime
