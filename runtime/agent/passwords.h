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
  // Takes the passwords from the environment variables and wipes these. If TLS is configured, asks
  // for those that are missing, and checks the certificates and keys that the job's processes will
  // use. Passwords in files of the user stay there. Errors: those of tls::password_of() and
  // tls::Context::make().
  static Result<Passwords> take(const config::Settings& settings, bool of_server);

  // Writes the passwords into files of the job's folder, which is in memory and goes with the job,
  // and makes `environment` and `settings` name the files. So no process has a password in its
  // environment.
  Status leave_in(const std::string& directory, Words& environment, config::Settings& settings);

 private:
  std::vector<std::pair<tls::Role, tls::Password>> all_;
};

}  // namespace holdfast::runtime
