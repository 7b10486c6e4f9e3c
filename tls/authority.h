// Authority: makes certificates, to try TLS out and for tests. A real job has an authority already.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "tls/openssl.h"
#include "tls/password.h"

namespace holdfast::tls {

// From when to when something is valid, counted from now.
struct Validity {
  std::chrono::seconds from = -std::chrono::hours(1);  // Clocks differ.
  std::chrono::seconds until = std::chrono::hours(24 * 365);
};

struct Request {
  std::string name;  // The certificate's common name.
  // The certificate's extended key usage: "serverAuth,clientAuth". May be empty.
  std::string roles;
  std::vector<std::string> hosts;  // Names and addresses that it is valid for.
  Validity validity = {};
};

struct Issued {
  std::string pkcs12;  // The certificate and its new key, encrypted with the password.
  long serial = 0;
};

class Authority {
 public:
  static Result<Authority> make(const std::string& name, const Validity& validity);

  // A new certificate, signed by this authority.
  [[nodiscard]] Result<Issued> issue(const Request& request, const Password& password) const;

  // The revocation list of the certificates with these serial numbers. It is PEM, as the next two
  // are.
  [[nodiscard]] Result<std::string> revocation_list(const std::set<long>& serials,
                                                    const Validity& validity) const;
  [[nodiscard]] Result<std::string> certificate() const;
  [[nodiscard]] Result<std::string> key() const;

 private:
  Authority(CertificatePtr certificate, KeyPtr key)
      : certificate_(std::move(certificate)), key_(std::move(key)) {}

  CertificatePtr certificate_;
  KeyPtr key_;
};

// A password that nobody can guess: 48 letters and digits.
Result<Password> random_password();

}  // namespace holdfast::tls
