#include "runtime/worker/secure_channel.h"

#include "runtime/jobs/scheduler_link.h"
#include "runtime/jobs/tls_choice.h"

namespace holdfast::runtime {

Status set_tls(const config::Settings& settings, const std::string& config_path,
               std::string_view client_password, std::string_view server_password) {
  const auto chosen = choose_tls(settings, config_path, tls::Password(client_password),
                                 tls::Password(server_password));
  if (!chosen) complain_to_scheduler(settings, chosen.error());
  return chosen;
}

}  // namespace holdfast::runtime
