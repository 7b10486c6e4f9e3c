// Sessions: a client that comes back shakes hands without certificates, from what it kept of an
// earlier connection (a session), and the server from what it gave the client then, sealed (a
// ticket).
//
// A peer whose session is resumed was checked in full before: authority, role, name, revocation. A
// session is good as long as all that was checked then is good, and for seven days at most. It is
// good only with the same certificate of the server, authorities and revocation lists: each change
// of one of these makes another SSL_CTX on either side, and another key for tickets.
#pragma once

#include <string>
#include <string_view>

#include "tls/certificates.h"
#include "tls/openssl.h"

namespace holdfast::tls {

// Makes the connections of `context` ones that can be resumed. False: OpenSSL can not.
bool keep_sessions(SSL_CTX* context, Role role, const Trust& trust);

// For a server: tickets are sealed by a key that is derived from `secret` and from all that they
// are good for, so those that a predecessor gave are good. A process that knows the secret can make
// tickets, so only the server may have it. Otherwise each SSL_CTX draws a key of its own.
bool seal_tickets(SSL_CTX* context, const std::string& secret, const std::string& good_for);

// All that a ticket of this server is good for, as a digest.
std::string digest_of(const Trust& trust, const Identity& identity, std::string_view ciphers);

// For a client, after require_host(): it resumes its last session with this host if it has one.
void offer_session(SSL* ssl);

}  // namespace holdfast::tls
