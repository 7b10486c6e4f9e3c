#include "tls/handshake.h"

#include <openssl/err.h>

#include <utility>

#include "base/text.h"

namespace holdfast::tls {
namespace {

constexpr int kMostRounds = 50;  // Rounds of meet(); six are usual.

// The certificate of the peer that was refused, noted where OpenSSL still knows it.
struct RefusedPeer {
  std::string subject;
  std::string words;
};

int refused_peer_index() {
  static const int index = SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr, [](void*, void* noted, CRYPTO_EX_DATA*, int, long, void*) {
        delete static_cast<RefusedPeer*>(noted);
      });
  return index;
}

// Whether the certificate has any name besides its subject's.
bool has_alternative_names(const X509* certificate) {
  return X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1) >= 0;
}

// MindSpore does not check the name of the host, and the certificates of its instructions have no
// subjectAltName. Authority, role, validity and revocation are checked all the same.
bool names_no_host(X509_STORE_CTX* check) {
  const int error = X509_STORE_CTX_get_error(check);
  if (error != X509_V_ERR_HOSTNAME_MISMATCH && error != X509_V_ERR_IP_ADDRESS_MISMATCH)
    return false;
  const auto* certificate = X509_STORE_CTX_get_current_cert(check);
  return certificate != nullptr && !has_alternative_names(certificate);
}

int note_refused(int good, X509_STORE_CTX* check) {
  if (good == 1) return 1;
  if (names_no_host(check)) {
    X509_STORE_CTX_set_error(check, X509_V_OK);
    return 1;
  }
  auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(check, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto* certificate = X509_STORE_CTX_get_current_cert(check);
  const Role theirs = SSL_is_server(ssl) == 1 ? Role::kClient : Role::kServer;
  auto* noted = new RefusedPeer{subject_of(certificate),
                                in_words(X509_STORE_CTX_get_error(check), certificate, theirs)};
  delete static_cast<RefusedPeer*>(SSL_get_ex_data(ssl, refused_peer_index()));
  SSL_set_ex_data(ssl, refused_peer_index(), noted);
  return 0;
}

// What a peer's alert says about this side's certificate, in words. Null: the alert is about
// something else.
const char* refusal_of_alert(int reason) {
  switch (reason) {
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it, or the peer's revocation list, has expired: renew it";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return "it is revoked: have a new one issued";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "the peer does not trust its authority, or lacks a revocation list of it: both sides "
             "need the same ca_cert_path and crl_path";
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
      return "it is not made for this role: see its extended key usage";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      return "it does not name the host of MS_SCHED_HOST, or is not yet valid there, or is "
             "damaged: the "
             "peer's log says which";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      return "the peer can not use it: the peer's log says why";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_SSLV3_ALERT_NO_CERTIFICATE:
      return "none was sent: set client_cert_path";
    default:
      return nullptr;
  }
}

// Other reasons why a handshake fails, in words. Null: no reason that users meet.
const char* words_of(int reason) {
  switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_RECORD_LENGTH_MISMATCH:
      return "the peer does not speak TLS: set the same TLS configuration for all processes of the "
             "job";
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_CIPHERS_AVAILABLE:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
      return "no cipher is in the lists of both sides and fits the certificates: compare their "
             "cipher_list";
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      return "the peer found nothing in common: compare the cipher_list of both sides, and whether "
             "this side has a certificate";
    case SSL_R_TLSV1_ALERT_INSUFFICIENT_SECURITY:
      return "the peer finds what this side offers too weak: compare the cipher_list of both sides";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
      return "the two sides have no TLS version in common: TLS 1.2 and 1.3 are spoken here, as far "
             "as cipher_list has ciphers for them";
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return "the client sent no certificate: each process of the job needs one (client_cert_path)";
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return "the peer closed the connection in the middle of the handshake: its log says why";
    case SSL_R_TLSV1_ALERT_INTERNAL_ERROR:
      return "the peer can not begin TLS now: its log says why";
    default:
      return nullptr;
  }
}

// One side of a handshake in memory.
struct Side {
  SSL* ssl = nullptr;
  bool greeted = false;  // The handshake is done on this side, and a byte sent.
  bool heard = false;    // The other's byte has come.
  std::string refusal;
  [[nodiscard]] bool over() const { return heard || !refusal.empty(); }

  void go_on() {
    if (over()) return;
    ERR_clear_error();
    char byte = 'H';
    int result = greeted ? 1 : SSL_do_handshake(ssl);
    if (result == 1 && !greeted) result = SSL_write(ssl, &byte, 1);
    greeted = greeted || result == 1;
    if (greeted) result = SSL_read(ssl, &byte, 1);
    heard = greeted && result == 1;
    const int error = SSL_get_error(ssl, result);
    if (heard || error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return;
    refusal = why(ssl, result);
    // Like the end of a closed socket: the other side need not wait.
    BIO_shutdown_wr(SSL_get_wbio(ssl));
  }
};

}  // namespace

void watch_verification(SSL_CTX* context) {
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, note_refused);
}

Status require_host(SSL* ssl, const std::string& host) {
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const bool set = is_address(host)
                       ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1
                       : !host.empty() && SSL_set1_host(ssl, host.c_str()) == 1 &&
                             SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
  ERR_clear_error();
  if (set) return {};
  return Error{Blame::kUser, cat("'", host, "' is no name of a host")};
}

std::string why(SSL* ssl, int result) {
  const bool server = SSL_is_server(ssl) == 1;
  const std::string_view mine = server ? "server" : "client";
  const std::string_view theirs = server ? "client" : "server";
  const int error = SSL_get_error(ssl, result);
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const auto* refused = static_cast<RefusedPeer*>(SSL_get_ex_data(ssl, refused_peer_index()));
  if (refused != nullptr && SSL_get_verify_result(ssl) != X509_V_OK) {
    ERR_clear_error();
    return cat("the ", theirs, "'s certificate (", refused->subject, ") ", refused->words);
  }
  if (error == SSL_ERROR_ZERO_RETURN || (error == SSL_ERROR_SYSCALL && ERR_peek_error() == 0)) {
    return words_of(SSL_R_UNEXPECTED_EOF_WHILE_READING);
  }
  if (const char* refusal = refusal_of_alert(reason); refusal != nullptr) {
    ERR_clear_error();
    return cat("the ", theirs, " refused this ", mine, "'s certificate (",
               subject_of(SSL_get_certificate(ssl)), "): ", refusal);
  }
  const std::string words = openssl_reason();
  const char* ours = words_of(reason);
  return ours != nullptr ? ours : cat("the TLS handshake failed: ", words);
}

Meeting meet(SSL* server, SSL* client) {
  BIO* server_end = nullptr;
  BIO* client_end = nullptr;
  if (BIO_new_bio_pair(&server_end, 0, &client_end, 0) != 1) {
    return {.server_refusal = cat("no memory for a handshake: ", openssl_reason())};
  }
  SSL_set_bio(server, server_end, server_end);
  SSL_set_bio(client, client_end, client_end);
  Side one{.ssl = server};
  Side other{.ssl = client};
  for (int round = 0; round < kMostRounds && !(one.over() && other.over()); ++round) {
    other.go_on();
    one.go_on();
  }
  for (Side* side : {&one, &other}) {
    if (!side->over()) side->refusal = "the handshake did not end";
  }
  return {one.refusal, other.refusal, SSL_get_version(server),
          one.greeted && other.greeted ? SSL_get_cipher_name(server) : "",
          SSL_session_reused(client) == 1};
}

}  // namespace holdfast::tls
