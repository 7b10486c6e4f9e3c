#include "tls/openssl.h"

#include <arpa/inet.h>
#include <openssl/err.h>

#include <array>
#include <ctime>

#include "base/text.h"

namespace holdfast::tls {
namespace {

constexpr std::size_t kLongestSubject = 200;

}  // namespace

bool is_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

std::string_view name_of(Role role) {
  return role == Role::kServer ? "server" : "client";
}

BioPtr reader_of(std::string_view bytes) {
  return BioPtr(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

std::string openssl_reason() {
  const auto error = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(error);
  ERR_clear_error();
  return reason != nullptr ? reason : error != 0 ? cat("error ", error) : "no reason given";
}

std::string subject_of(const X509* certificate) {
  if (certificate == nullptr) return "none";
  const BioPtr text(BIO_new(BIO_s_mem()));
  // With this flag, everything that is not plain ASCII is escaped.
  X509_NAME_print_ex(text.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
  char* start = nullptr;
  const auto length = static_cast<std::size_t>(BIO_get_mem_data(text.get(), &start));
  if (length == 0) return "without a name";
  if (length > kLongestSubject) return cat(std::string_view(start, kLongestSubject), "...");
  return {start, length};
}

std::string in_words(const ASN1_TIME* time) {
  std::tm broken_down{};
  char text[32];
  if (ASN1_TIME_to_tm(time, &broken_down) != 1) return "a time that is none";
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &broken_down)};
}

int days_until(const ASN1_TIME* time) {
  int days = 0;
  int seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, nullptr, time) != 1) return -1;
  return seconds < 0 ? days - 1 : days;
}

std::string in_words(long verify_error, const X509* certificate, Role role) {
  switch (verify_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return cat(
          "has expired",
          certificate != nullptr ? cat(" at ", in_words(X509_get0_notAfter(certificate))) : "",
          ": renew it");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return cat("is not yet valid",
                 certificate != nullptr
                     ? cat(", only from ", in_words(X509_get0_notBefore(certificate)))
                     : "",
                 ": wait, or set the clock that is wrong");
    case X509_V_ERR_CERT_REVOKED:
      return "is revoked by the list of crl_path: have a new one issued";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
      return "is not signed by an authority of ca_cert_path: use one that this job's authority "
             "signed";
    case X509_V_ERR_INVALID_PURPOSE:
      return cat("is not made for the role of a ", name_of(role),
                 ": its extended key usage must name ",
                 role == Role::kServer ? "serverAuth" : "clientAuth", ", or be absent");
    case X509_V_ERR_UNABLE_TO_GET_CRL:
      return "can not be checked, since crl_path has no list of its authority: add that list";
    case X509_V_ERR_CRL_HAS_EXPIRED:
      return "can not be checked, since the list of crl_path has expired: put a newer one there";
    case X509_V_ERR_CRL_NOT_YET_VALID:
      return "can not be checked, since the list of crl_path is not yet valid: set the clock that "
             "is wrong";
    case X509_V_ERR_CRL_SIGNATURE_FAILURE:
      return "can not be checked, since the list of crl_path is not signed by its authority";
    case X509_V_ERR_EE_KEY_TOO_SMALL:
    case X509_V_ERR_CA_KEY_TOO_SMALL:
    case X509_V_ERR_CA_MD_TOO_WEAK:
      return "is too weak: it needs RSA keys of 2048 bits or more, or elliptic curves, and SHA-256";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "does not name the host that was called: have one issued with its name";
    default:
      return cat("is refused: ", X509_verify_cert_error_string(verify_error));
  }
}

}  // namespace holdfast::tls
