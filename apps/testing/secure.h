// Makes a test's job use TLS.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "os/files.h"
#include "tls/testing/papers.h"

namespace holdfast::apps {

// Returns the variables for all processes of the job. Writes config.json beside the certificates.
inline std::vector<std::string> tls_environment(const tls::Papers& papers) {
  const std::string config = papers.path("config.json");
  EXPECT_TRUE(os::write_file_atomically(
      config, R"({"server_cert_path": "server.p12", "client_cert_path": "client.p12",
                  "ca_cert_path": "ca.crt", "crl_path": "crl.pem", "cipher_list": "",
                  "cert_expire_warning_time_in_day": 7})"));
  return {"HOLDFAST_TLS_CONFIG=" + config,
          cat("HOLDFAST_TLS_SERVER_PASSWORD=", tls::kServerPassword),
          cat("HOLDFAST_TLS_CLIENT_PASSWORD=", tls::kClientPassword)};
}

}  // namespace holdfast::apps
