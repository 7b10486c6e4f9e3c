// Why a handshake failed, in words for people; and a handshake in memory, to try two sides out.
#pragma once

#include <string>

#include "base/result.h"
#include "tls/context.h"
#include "tls/openssl.h"

namespace holdfast::tls {

// Makes every connection of `context` refuse a peer without a good certificate, and note for why()
// whose certificate was refused.
void watch_verification(SSL_CTX* context);

// Makes a client accept only a server whose certificate names `host`, a name or an address, or has
// no subjectAltName at all. Call it before the handshake.
Status require_host(SSL* ssl, const std::string& host);

// Why the last call of SSL_do_handshake(), SSL_read() or SSL_write() failed: one sentence that
// names the certificate, what is wrong with it, and who has to do what. `result` is what the call
// returned. Under TLS 1.3 a client learns of the server's refusal only when it reads. Call it in
// the same thread, before any other call of OpenSSL. Forgets OpenSSL's errors. It holds nothing of
// a key or a password.
std::string why(SSL* ssl, int result);

// How a handshake went, for both sides.
struct Meeting {
  std::string server_refusal;  // why() of each side. Empty: it would go on.
  std::string client_refusal;
  std::string version;  // "TLSv1.3"
  std::string cipher;
  bool resumed = false;  // Without certificates, from an earlier session.
  [[nodiscard]] bool agreed() const { return server_refusal.empty() && client_refusal.empty(); }
};

// Lets two connections shake hands in memory, and exchange a byte each way.
Meeting meet(SSL* server, SSL* client);

}  // namespace holdfast::tls
