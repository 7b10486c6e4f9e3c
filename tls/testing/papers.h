// A job's certificates for tests: whole and sound, until a test breaks one thing of them.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "os/testing.h"
#include "tls/authority.h"
#include "tls/context.h"
#include "tls/handshake.h"

namespace holdfast::tls {

inline constexpr std::string_view kServerPassword = "swordfish-of-the-server";
inline constexpr std::string_view kClientPassword = "swordfish-of-the-client";
inline constexpr Validity kPast{-std::chrono::hours(48), -std::chrono::hours(24)};
inline constexpr Validity kFuture{std::chrono::hours(24), std::chrono::hours(48)};

bool has(const std::string& text, std::string_view part);

class Papers {
 public:
  explicit Papers(const std::string& authority_name = "authority");

  // Replaces the certificate of a role; returns its serial number. The extended key usage of the
  // role is added, unless `request` names one or `any_role` is set.
  long issue(Role role, Request request, bool any_role = false);
  // Replaces the revocation list, in place.
  void revoke(const std::set<long>& serials, const Validity& validity = {});
  void write(const std::string& name, const std::string& bytes);
  [[nodiscard]] std::string path(const std::string& name) const { return folder / name; }

  [[nodiscard]] Result<std::shared_ptr<Context>> context(Role role) const;
  // The error of context(role), or "none".
  [[nodiscard]] std::string error_of(Role role) const;
  // A connection of an end that checks neither its own certificate nor its peer's.
  [[nodiscard]] SslPtr careless(Role role) const;

  os::TemporaryFolder folder;
  Authority authority;
  Config config;
};

// meet() for two connections that are limited to one version of TLS.
Meeting meet_under(int version, const Result<SslPtr>& server, const Result<SslPtr>& client);

}  // namespace holdfast::tls
