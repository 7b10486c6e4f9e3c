#include "runtime/agent/passwords.h"

#include <unistd.h>

#include "base/text.h"
#include "os/files.h"
#include "tls/config.h"
#include "tls/context.h"

namespace holdfast::runtime {
namespace {

using tls::Role;

std::string& file_of(config::Settings& settings, Role role) {
  return role == Role::kServer ? settings.tls_server_password_file
                               : settings.tls_client_password_file;
}

std::string variable_of(Role role) {
  return role == Role::kServer ? "HOLDFAST_TLS_SERVER_PASSWORD" : "HOLDFAST_TLS_CLIENT_PASSWORD";
}

}  // namespace

Result<Passwords> Passwords::take(const config::Settings& settings, bool of_server) {
  Passwords passwords;
  if (settings.tls_config.empty()) return passwords;
  const auto config = tls::read_config(settings.tls_config);
  if (!config) return config.error();
  std::vector<Role> roles = {Role::kClient};
  if (of_server) roles.push_back(Role::kServer);
  for (const Role role : roles) {
    auto copy = settings;
    const bool stays = !file_of(copy, role).empty();
    auto password = tls::password_of(role, settings, environ);
    if (!password) return password.error();
    const auto sound = tls::Context::make(*config, role, *password);
    if (!sound) return sound.error();
    if (!stays) passwords.all_.emplace_back(role, *std::move(password));
  }
  return passwords;
}

Status Passwords::leave_in(const std::string& directory, Words& environment,
                           config::Settings& settings) const {
  for (const auto& [role, password] : all_) {
    const std::string path = cat(directory, '/', tls::name_of(role), ".password");
    const auto written = os::write_file_atomically(path, password.text());
    if (!written) return written.error();
    unset(environment, variable_of(role));
    set(environment, variable_of(role) + "_FILE", path);
    file_of(settings, role) = path;
    (role == Role::kServer ? settings.tls_server_password : settings.tls_client_password) = {};
  }
  return {};
}

}  // namespace holdfast::runtime
