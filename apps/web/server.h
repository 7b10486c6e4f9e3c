// Server: what answers browsers and Prometheus. It only tells; no request changes anything.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "apps/web/watch.h"
#include "base/result.h"

namespace holdfast::apps::web {

// Answers GET and HEAD:
//   /             the status page; with ?token=, it leaves a cookie and goes on to the page
//   /live         what of the page changes; ?ranks=all, as at /, shows all ranks
//   /status.json  the scheduler's newest answer
//   /metrics      for Prometheus
//   /healthz      "ok"; the only one without a token
// The token comes as cookie, as ?token= or as "Authorization: Bearer". A connection has one
// request, and what it may take is bounded (bounded_stream.h); at most kThreads are answered at a
// time, and as many wait.
class Server {
 public:
  static constexpr std::size_t kThreads = 8;

  // Listens, and answers in threads of its own until it is destroyed. `port` 0: any free one. `job`
  // names the cookie. `watch` has to outlive this.
  //
  // Errors (Blame::kUser) name the address, and why it can not be had.
  static Result<std::unique_ptr<Server>> listen(Watch& watch, const std::string& host,
                                                std::uint16_t port, const std::string& job,
                                                std::string token);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::uint16_t port() const;

 private:
  class Http;
  Server();
  std::unique_ptr<Http> http_;
  std::thread thread_;  // Accepts connections.
};

}  // namespace holdfast::apps::web
