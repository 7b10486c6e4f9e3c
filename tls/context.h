// Context: all that one role of a job needs for its TLS connections, from a Config.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "tls/certificates.h"
#include "tls/ciphers.h"
#include "tls/config.h"
#include "tls/openssl.h"

namespace holdfast::tls {

// TLS 1.2 or 1.3. Both sides prove themselves; only the authorities of ca_cert_path are trusted. A
// certificate with an extended key usage must name its role in it (serverAuth, clientAuth); one
// without serves in both. With a crl_path no peer is accepted unless a valid list was looked up.
// Thread-safe.
class Context {
 public:
  // Errors (Blame::kUser) name the file, what is wrong with it and what to do. The certificate of
  // this process is checked as its peers will check it.
  static Result<std::shared_ptr<Context>> make(const Config& config, Role role,
                                               const Password& password);

  // For a server: its sessions outlive this context. Another context with the same secret,
  // certificate, authorities and revocation lists resumes them. Call it before the first begin().
  // See tls/sessions.h.
  Status keep_sessions_by(const std::string& secret);

  // The error that begin() would return now. Costs no more than looking whether a file has changed.
  Status look();

  // Makes a new connection, before its handshake. The revocation list is read again if its file has
  // changed. Then no session from before is resumed. It is an error, as in make(), if the list can
  // not be used any more: no peer is accepted until it can be. A certificate that was renewed is
  // used from now on, if it opens with the same password and is sound; else the former one stays in
  // use, say_by()'s function is told that once, and the file is looked at again after a minute.
  Result<SslPtr> begin();
  Result<SslPtr> begin(Instant now);
  // Makes a connection between two workers. Both prove themselves by a client's certificate,
  // because no worker has a server's, and none is issued for its host. So the worker that connects
  // checks no host name. No session is resumed or kept. Requires: a client's context.
  enum class Peer : std::uint8_t { kConnects, kAccepts };
  Result<SslPtr> begin_with(Peer me);

  // Sets the function that gets what no call returns, one sentence at a time. Call it before the
  // first begin().
  using Say = std::function<void(const std::string&)>;
  void say_by(Say say);

  // Says what is about to expire, once a day, as long as it is called more often than that. It
  // looks at renewed files first, as begin(). The first day's warnings() are left to the caller of
  // make().
  void remind(Instant now);

  // Sentences about what should be changed soon: ignored ciphers, and what is about to expire.
  [[nodiscard]] std::vector<std::string> warnings() const;

  // The certificate of this role, in words: "CN = server, valid until ...".
  [[nodiscard]] std::string about() const;

 private:
  Context(Config config, Role role, Ciphers ciphers, const Password& password)
      : config_(std::move(config)),
        role_(role),
        ciphers_(std::move(ciphers)),
        password_(password.text()) {}
  Status renew(Instant now);
  Status use_identity(Instant now);
  void say_once(const std::string& problem);
  Status look_at_list(Instant now);
  [[nodiscard]] Result<SslContextPtr> build(const Trust& trust, const Identity& identity) const;

  const Config config_;
  const Role role_;
  const Ciphers ciphers_;
  const Password password_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::string secret_;        // The secret of tickets. Empty: no ticket outlives the SSL_CTX.
  Say say_;
  std::string said_;  // The last problem of a renewed certificate, until there is none.
  std::optional<Instant> reminded_;
  // A list that can not be used is not read at each connection.
  struct Unusable {
    Error why;
    FileMark mark;
    Instant since;
  };
  std::optional<Unusable> unusable_;
  Identity identity_;
  FileMark identity_mark_;
  std::optional<Instant> refused_since_;  // Set while the file with identity_mark_ is refused.
  Trust trust_;
  SslContextPtr context_;
};

}  // namespace holdfast::tls
