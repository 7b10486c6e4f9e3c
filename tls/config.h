// The file that configures Holdfast's TLS: MindSpore's config.json.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace holdfast::tls {

// Names, types and defaults are MindSpore's. Paths are as the file has them, but one that is not
// absolute counts from the file's own folder.
struct Config {
  std::string server_cert_path;  // PKCS#12: the server's certificate and key.
  std::string client_cert_path;  // PKCS#12: the client's certificate and key.
  std::string ca_cert_path;      // PEM: the authorities that sign this job's certificates.
  std::string crl_path;          // PEM: what they have revoked. Empty: nothing is looked up.
  std::string cipher_list;       // OpenSSL's names, with ':' between. Empty: kSoundCiphers.
  int cert_expire_warning_time_in_day = 90;  // 7 to 180.

  std::vector<std::string> warnings;  // Sentences about keys that mean nothing here.
};

// Reads the file at `path`. Thread-safe.
//
// Errors (Blame::kUser) name the file and the key: it is no JSON (with the line), larger than 1
// MiB, lacks a key, has a value of a wrong type or out of range, or a key that looks like a
// misspelt one.
Result<Config> read_config(const std::string& path);

}  // namespace holdfast::tls
