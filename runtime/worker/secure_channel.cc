#include "runtime/worker/secure_channel.h"

#include "runtime/jobs/tls_choice.h"

namespace holdfast::runtime {

Status set_tls(const config::Settings& settings, const std::string& config_path,
               std::string_view client_password, std::string_view server_password) {
  return choose_tls(settings, config_path, tls::Password(client_password),
                    tls::Password(server_password));
}

}  // namespace holdfast::runtime
