// HttpClient: asks one server, by POST over HTTP/1.1, in the clear or under TLS; blocks, and not
// for longer than it is told.
//
// It does no more than is needed: JSON each way, no redirects, no cookies, no compression.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::io {

// A process's certificate, and the authorities that it believes. Null: in the clear.
using HttpTls = std::shared_ptr<SSL_CTX>;
// The files are PEM. Without `authority`, the system's authorities are believed. Without a
// certificate, the process does not prove itself. `what` and errors (Blame::kUser) name the files.
Result<HttpTls> http_tls(const std::string& authority, const std::string& certificate,
                         const std::string& key);

// For one thread at a time. Keeps its connection from one request to the next.
class HttpClient {
 public:
  HttpClient(std::string host, std::uint16_t port, HttpTls tls);
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;
  ~HttpClient();

  struct Answer {
    int status = 0;
    std::string body;  // At most kMostBytes: a longer one is an error.
  };
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  // By `until` there is an answer, or an error: the server may have heard the request all the same.
  // A request may be sent twice, where the server closes a connection that was kept. Blame::kUser:
  // the two ends do not agree about TLS.
  Result<Answer> post(std::string_view path, std::string_view body, Instant until);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::io
