// Passwords: what opens the certificates of a job, on its way from the user to the job's processes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "config/settings.h"
#include "runtime/agent/launcher.h"
#include "tls/password.h"

namespace holdfast::runtime {

class Passwords {
 public:
  // Takes them from the variables, which are wiped. If TLS is configured, asks for those that are
  // missing, and checks all that the job's processes would prove themselves with. Those that are in
  // files of the user stay there. Errors as of tls::password_of() and tls::Context::make().
  static Result<Passwords> take(const config::Settings& settings, bool of_server);

  // Puts them into files of the job's folder, which is memory and goes with the job, and has
  // `environment` and `settings` name the files. So none is in the environment of a process.
  Status leave_in(const std::string& directory, Words& environment, config::Settings& settings);

 private:
  std::vector<std::pair<tls::Role, tls::Password>> all_;
};

}  // namespace holdfast::runtime
