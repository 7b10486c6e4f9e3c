#include "apps/web/server.h"

#include <httplib.h>
#include <openssl/crypto.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "apps/web/bounded_stream.h"
#include "apps/web/files.h"
#include "apps/web/metrics.h"
#include "apps/web/page.h"
#include "base/text.h"
#include "os/errors.h"

namespace holdfast::apps::web {
namespace {

using httplib::Request;
using httplib::Response;

constexpr const char* kHtml = "text/html; charset=utf-8";
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Threads that answer. Where httplib's own queue grows without limit, this one has the accepting
// thread wait: the kernel then holds a few more connections, and refuses the others.
class Pool final : public httplib::TaskQueue {
 public:
  Pool() {
    for (std::size_t i = 0; i < Server::kThreads; ++i) {
      threads_.emplace_back([this] { work(); });
    }
  }

  // Nothing in httplib 0.11 (Debian 12), a bool since 0.15: whether the task was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));
  Taken enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < Server::kThreads; });
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return static_cast<Taken>(true);
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_over_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      changed_.notify_all();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::function<void()>> tasks_;
  bool is_over_ = false;
  std::vector<std::thread> threads_;
};

// The value of a cookie. Empty: there is none of this name.
std::string cookie_of(const Request& request, const std::string& name) {
  const std::string all = cat("; ", request.get_header_value("Cookie"));
  const std::string before = cat("; ", name, '=');
  const auto at = all.find(before);
  if (at == std::string::npos) return {};
  const auto from = at + before.size();
  return all.substr(from, all.find(';', from) - from);
}

}  // namespace

class Server::Http final : public httplib::Server {
 public:
  Http(Watch& watch, const std::string& job, std::string token)
      : watch_(watch), cookie_(cat("holdfast_", job)), token_(std::move(token)) {
    new_task_queue = [] { return new Pool; };
    // httplib would let two processes share a port.
    set_socket_options([](int socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    set_payload_max_length(0);
    set_default_headers({{"Content-Security-Policy", kPolicy},
                         {"Cache-Control", "no-store"},
                         {"Referrer-Policy", "no-referrer"},
                         {"X-Content-Type-Options", "nosniff"},
                         {"Cross-Origin-Resource-Policy", "same-origin"}});
    set_pre_routing_handler([this](const Request& request, Response& answer) {
      if (request.path == "/healthz" || is_allowed(request)) return HandlerResponse::Unhandled;
      answer.status = 401;
      answer.set_header("WWW-Authenticate", "Bearer");
      answer.set_content(refusal_page(), kHtml);
      return HandlerResponse::Handled;
    });
    offer();
  }

  std::uint16_t port = 0;

 private:
  // Whether a text is the token. Takes as long for each that is as long.
  [[nodiscard]] bool is_token(const std::string& text) const {
    return text.size() == token_.size() &&
           CRYPTO_memcmp(text.data(), token_.data(), token_.size()) == 0;
  }

  [[nodiscard]] bool is_allowed(const Request& request) const {
    constexpr std::string_view kBearer = "Bearer ";
    const std::string header = request.get_header_value("Authorization");
    return is_token(request.get_param_value("token")) || is_token(cookie_of(request, cookie_)) ||
           (header.starts_with(kBearer) && is_token(header.substr(kBearer.size())));
  }

  void offer() {
    Get("/healthz",
        [](const Request&, Response& answer) { answer.set_content("ok\n", "text/plain"); });
    Get("/page\\.css", [](const Request&, Response& answer) {
      answer.set_content(std::string(kPageCss), "text/css; charset=utf-8");
    });
    Get("/page\\.js", [](const Request&, Response& answer) {
      answer.set_content(std::string(kPageJs), "text/javascript; charset=utf-8");
    });
    Get("/", [this](const Request& request, Response& answer) {
      if (!request.has_param("token")) return tell(request, answer, "page", page_of);
      answer.set_header("Set-Cookie",
                        cat(cookie_, '=', token_, "; Path=/; HttpOnly; SameSite=Strict"));
      answer.set_content(welcome_page(), kHtml);
    });
    Get("/live", [this](const Request& request, Response& answer) {
      tell(request, answer, "live", live_part_of);
    });
    Get("/metrics", [this](const Request&, Response& answer) {
      answer.set_content(watch_.text("metrics", metrics_of), kMetricsType);
    });
    Get("/status\\.json", [this](const Request&, Response& answer) {
      const auto text = watch_.text("status", [](const Record& record, Seconds) {
        const Json& status = record.status();
        return status.is_object()
                   ? status.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                   : Json{{"error", record.why_not()}}.dump() + "\n";
      });
      answer.set_content(text, "application/json");
    });
  }

  using Make = std::string (*)(const Record&, Seconds, bool);
  void tell(const Request& request, Response& answer, const char* what, Make make) {
    const bool all = request.get_param_value("ranks") == "all";
    const auto text =
        watch_.text(cat(what, all ? "?ranks=all" : ""),
                    [&](const Record& record, Seconds now) { return make(record, now, all); });
    answer.set_content(text, kHtml);
  }

  bool process_and_close_socket(int socket) override {
    BoundedStream stream(socket);
    bool is_closed = false;
    // Ranges of a text that is new each second make no sense, and many of them would make a long
    // answer of a short one.
    const auto without_ranges = [](Request& request) { request.ranges.clear(); };
    const auto answer = [&](auto& to) {
      if constexpr (requires { process_request(to, true, is_closed, without_ranges); }) {
        return process_request(to, true, is_closed, without_ranges);
      } else {  // httplib 0.15 and later want the addresses, too.
        return process_request(to, "", 0, "", 0, true, is_closed, without_ranges);
      }
    };
    const bool done = answer(stream);
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return done;
  }

  Watch& watch_;
  const std::string cookie_;
  const std::string token_;
};

Server::Server() = default;

Result<std::unique_ptr<Server>> Server::listen(Watch& watch, const std::string& host,
                                               std::uint16_t port, const std::string& job,
                                               std::string token) {
  std::unique_ptr<Server> made(new Server);
  made->http_ = std::make_unique<Http>(watch, job, std::move(token));
  errno = 0;
  const int bound = port == 0                               ? made->http_->bind_to_any_port(host)
                    : made->http_->bind_to_port(host, port) ? port
                                                            : -1;
  if (bound <= 0) {
    return Error{Blame::kUser, cat("can not listen at ", host_and_port(host, port), ": ",
                                   errno == 0 ? "no such address" : os::last_system_error(),
                                   ": name another address or port with --listen")};
  }
  made->http_->port = static_cast<std::uint16_t>(bound);
  made->thread_ = std::thread([http = made->http_.get()] { http->listen_after_bind(); });
  return made;
}

Server::~Server() {
  if (!thread_.joinable()) return;                         // It has never listened.
  while (!http_->is_running()) std::this_thread::yield();  // stop() does nothing before.
  http_->stop();
  thread_.join();
}

std::uint16_t Server::port() const {
  return http_->port;
}

}  // namespace holdfast::apps::web
