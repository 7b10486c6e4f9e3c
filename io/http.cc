#include "io/http.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/connection_impl.h"
#include "io/loop.h"
#include "io/stream.h"
#include "os/errors.h"
#include "tls/file.h"
#include "tls/handshake.h"
#include "tls/openssl.h"

namespace holdfast::io {
namespace {

constexpr std::size_t kMostHeaderBytes = 65536;
constexpr std::size_t kMostFileBytes = 1U << 20U;

bool is_letter(char one, char other) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return lower(one) == lower(other);
}

// The value of a header in `head`, whose lines end with CR LF.
std::optional<std::string_view> header(std::string_view head, std::string_view name) {
  for (std::size_t line = head.find("\r\n"); line != std::string_view::npos;) {
    const std::size_t begin = line + 2;
    line = head.find("\r\n", begin);
    const auto text = head.substr(begin, line == std::string_view::npos ? line : line - begin);
    const auto colon = text.find(':');
    if (colon != name.size() || !std::equal(name.begin(), name.end(), text.begin(), is_letter))
      continue;
    const auto value = text.substr(colon + 1);
    const auto first = value.find_first_not_of(' ');
    return first == std::string_view::npos ? std::string_view() : value.substr(first);
  }
  return std::nullopt;
}

std::optional<std::size_t> number(std::string_view text, int base) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  // A chunk's size may be followed by an extension.
  const bool whole = end == text.data() + text.size() || *end == ';' || *end == ' ';
  return error == std::errc{} && end != text.data() && whole ? std::optional(value) : std::nullopt;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// A connected socket, which is closed with this object.
struct Line {
  explicit Line(int fd) : socket(fd), stream(fd) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() { discard(socket); }

  int socket;
  Stream stream;
  std::string unread;  // Arrived, and not used yet.
};

}  // namespace

class HttpClient::Impl {
 public:
  Impl(std::string host, std::uint16_t port, HttpTls tls)
      : host_(std::move(host)),
        port_(port),
        name_(host_and_port(host_, port)),
        tls_(std::move(tls)) {}

  Result<Answer> post(std::string_view path, std::string_view body, Instant until) {
    until_ = until;
    const bool was_kept = line_ != nullptr;
    auto answer = try_post(path, body);
    // A server may close a kept connection at any time: tries again on a new one.
    if (!answer && was_kept && Loop::now() < until_) {
      line_.reset();
      answer = try_post(path, body);
    }
    if (!answer) line_.reset();
    return answer;
  }

 private:
  Result<Answer> try_post(std::string_view path, std::string_view body) {
    if (!line_) {
      if (const auto connected = connect(); !connected) return connected.error();
    }
    std::string request =
        cat("POST ", path, " HTTP/1.1\r\nHost: ", name_,
            "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n");
    request += body;
    if (const auto sent = send(request); !sent) return sent.error();
    return receive();
  }

  // Waits until the stream can go on.
  Status wait(Stream::Outcome outcome) {
    if (outcome == Stream::Outcome::kBroken) return line_->stream.why_broken(name_);
    if (outcome == Stream::Outcome::kEnd) {
      return Error{Blame::kWorld, cat(name_, " has closed the connection")};
    }
    const bool writes = outcome == Stream::Outcome::kWantsToWrite;
    return wait_for(line_->socket, writes ? POLLOUT : POLLIN);
  }

  Status wait_for(int socket, short what) {
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Loop::now()).count();
      if (left <= 0) return late();
      pollfd watched{socket, what, 0};
      const int ready = ::poll(&watched, 1, static_cast<int>(std::min<long>(left, 60'000)));
      if (ready > 0) return {};
      if (ready < 0 && errno != EINTR) return os::system_error(name_, errno);
    }
  }

  // A name is looked up once, and again when nobody answers at its addresses.
  Status connect() {
    if (!addresses_) {
      addrinfo hints{};
      hints.ai_socktype = SOCK_STREAM;
      addrinfo* found = nullptr;
      const int failed = ::getaddrinfo(host_.c_str(), cat(port_).c_str(), &hints, &found);
      if (failed != 0) return Error{Blame::kWorld, cat(name_, ": ", ::gai_strerror(failed))};
      addresses_.reset(found);
    }
    Status last = Error{Blame::kWorld, cat(name_, " has no address")};
    for (const auto* each = addresses_.get(); each != nullptr; each = each->ai_next) {
      last = connect_to(*each);
      if (last) return begin_tls();
    }
    addresses_.reset();
    return last;
  }

  Status connect_to(const addrinfo& address) {
    const int socket = guarded_socket(address.ai_family);
    if (socket < 0) return os::system_error(cat("cannot connect to ", name_), errno);
    auto line = std::make_unique<Line>(socket);
    const int at_once = 1;
    (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
    if (::connect(socket, address.ai_addr, address.ai_addrlen) != 0) {
      if (errno != EINPROGRESS) return os::system_error(cat("cannot connect to ", name_), errno);
      if (const auto made = wait_for(socket, POLLOUT); !made) return made;
      int error = 0;
      socklen_t size = sizeof(error);
      if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
      if (error != 0) return os::system_error(cat("cannot connect to ", name_), error);
    }
    line_ = std::move(line);
    return {};
  }

  Status begin_tls() {
    if (!tls_) return {};
    tls::SslPtr ssl(SSL_new(tls_.get()));
    if (!ssl) return Error{Blame::kWorld, cat(name_, ": ", tls::openssl_reason())};
    SSL_set_connect_state(ssl.get());
    if (const auto named = tls::require_host(ssl.get(), host_); !named) return named;
    line_->stream.put_under_tls(std::move(ssl));
    while (true) {
      const auto outcome = line_->stream.shake_hands();
      if (outcome == Stream::Outcome::kDone) return {};
      if (const auto ready = wait(outcome); !ready) {
        line_.reset();
        return ready;
      }
    }
  }

  Status send(std::string_view bytes) {
    while (!bytes.empty()) {
      if (Loop::now() >= until_) return late();
      const auto moved = line_->stream.write(bytes);
      if (moved.outcome == Stream::Outcome::kDone) {
        bytes.remove_prefix(moved.bytes);
      } else if (const auto ready = wait(moved.outcome); !ready) {
        return ready;
      }
    }
    return {};
  }

  Status read_more() {
    std::array<char, 16384> buffer;
    while (true) {
      if (Loop::now() >= until_) return late();
      const auto moved = line_->stream.read(buffer);
      if (moved.outcome == Stream::Outcome::kDone) {
        line_->unread.append(buffer.data(), moved.bytes);
        return {};
      }
      if (const auto ready = wait(moved.outcome); !ready) return ready;
    }
  }

  // Takes all up to and including `end`; returns it without `end`.
  Result<std::string> read_until(std::string_view end) {
    while (true) {
      const auto found = line_->unread.find(end);
      if (found != std::string::npos) {
        std::string taken = line_->unread.substr(0, found);
        line_->unread.erase(0, found + end.size());
        return taken;
      }
      if (line_->unread.size() > kMostHeaderBytes) return nonsense();
      if (const auto more = read_more(); !more) return more.error();
    }
  }

  Status read_bytes(std::size_t count, std::string& into) {
    if (count > kMostBytes || into.size() + count > kMostBytes) return nonsense();
    while (line_->unread.size() < count) {
      if (const auto more = read_more(); !more) return more;
    }
    into.append(line_->unread, 0, count);
    line_->unread.erase(0, count);
    return {};
  }

  Result<Answer> receive() {
    std::string head;
    Answer answer;
    do {  // "100 Continue" is no answer.
      auto read = read_until("\r\n\r\n");
      if (!read) return read.error();
      head = *std::move(read);
      const auto status =
          head.starts_with("HTTP/1.1 ") ? number(head.substr(9, 3), 10) : std::nullopt;
      if (!status) return nonsense();
      answer.status = static_cast<int>(*status);
    } while (answer.status < 200);
    const auto encoding = header(head, "Transfer-Encoding");
    const auto length = header(head, "Content-Length");
    Status whole;
    if (encoding && *encoding == "chunked") {
      whole = read_chunks(answer.body);
    } else {
      const auto size = length ? number(*length, 10) : std::nullopt;
      if (!size) return nonsense();
      whole = read_bytes(*size, answer.body);
    }
    if (!whole) return whole.error();
    if (const auto stays = header(head, "Connection"); stays && *stays == "close") line_.reset();
    return answer;
  }

  Status read_chunks(std::string& body) {
    while (true) {
      const auto line = read_until("\r\n");
      if (!line) return line.error();
      const auto size = number(*line, 16);
      if (!size) return nonsense();
      if (*size == 0) break;
      if (const auto read = read_bytes(*size, body); !read) return read;
      std::string end;
      if (const auto read = read_bytes(2, end); !read) return read;
      if (end != "\r\n") return nonsense();
    }
    while (true) {  // Trailers.
      const auto line = read_until("\r\n");
      if (!line) return line.error();
      if (line->empty()) return {};
    }
  }

  [[nodiscard]] Error late() const {
    return {Blame::kWorld, cat(name_, " does not answer in time")};
  }

  [[nodiscard]] Error nonsense() const {
    return {Blame::kPeer, cat("what ", name_, " answers is no HTTP of a sensible size")};
  }

  std::string host_;
  std::uint16_t port_;
  std::string name_;
  HttpTls tls_;
  Addresses addresses_;
  Instant until_{};
  std::unique_ptr<Line> line_;
};

HttpClient::HttpClient(std::string host, std::uint16_t port, HttpTls tls)
    : impl_(std::make_unique<Impl>(std::move(host), port, std::move(tls))) {}
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;
HttpClient::~HttpClient() = default;

Result<HttpClient::Answer> HttpClient::post(std::string_view path, std::string_view body,
                                            Instant until) {
  return impl_->post(path, body, until);
}

Result<HttpTls> http_tls(const std::string& authority, const std::string& certificate,
                         const std::string& key) {
  HttpTls made(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const auto wrong = [](const std::string& file, std::string_view what) {
    return Error{Blame::kUser, cat(file, " is no ", what, " in PEM: ", tls::openssl_reason())};
  };
  if (!made) return Error{Blame::kWorld, cat("cannot begin TLS: ", tls::openssl_reason())};
  SSL_CTX_set_min_proto_version(made.get(), TLS1_2_VERSION);
  SSL_CTX_set_security_level(made.get(), tls::kSecurityLevel);
  SSL_CTX_set_mode(made.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  tls::watch_verification(made.get());
  ERR_clear_error();
  for (const auto& [file, guard] :
       {std::pair(authority, tls::Guard::kShared), std::pair(certificate, tls::Guard::kShared),
        std::pair(key, tls::Guard::kSecret)}) {
    if (file.empty()) continue;
    if (const auto read = tls::read_file(file, "a file of TLS to etcd", kMostFileBytes, guard);
        !read)
      return read.error();
  }
  if (authority.empty()) {
    SSL_CTX_set_default_verify_paths(made.get());
  } else if (SSL_CTX_load_verify_locations(made.get(), authority.c_str(), nullptr) != 1) {
    return wrong(authority, "authority's certificate");
  }
  if (certificate.empty()) return made;
  if (SSL_CTX_use_certificate_chain_file(made.get(), certificate.c_str()) != 1) {
    return wrong(certificate, "certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(made.get(), key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(made.get()) != 1) {
    return wrong(key, cat("key of the certificate ", certificate));
  }
  return made;
}

}  // namespace holdfast::io
