#include "runtime/jobs/scheduler_link.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/text.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstDelay = 50ms;
constexpr Duration kLastDelay = 1s;
constexpr Duration kConnectLimit = 5s;
constexpr Duration kAnswerLimit = 5s;

const Error kNoScheduler{Blame::kWorld,
                         "whoever listens there does not answer as a scheduler does"};

}  // namespace

Error no_scheduler(const config::Settings& settings, const std::string& why) {
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g",
                std::chrono::duration<double>(settings.scheduler_timeout).count());
  return {Blame::kWorld, cat("no scheduler answers at ", settings.sched_host, ":",
                             settings.sched_port, " within ", limit,
                             " s (MS_SCHED_HOST, MS_SCHED_PORT, "
                             "HOLDFAST_SCHEDULER_TIMEOUT or MS_TOPO_TIMEOUT): ",
                             why)};
}

SchedulerLink::SchedulerLink(io::Loop& loop, const config::Settings& settings, Handlers handlers)
    : loop_(loop), settings_(settings), handlers_(std::move(handlers)), delay_(kFirstDelay) {}

void SchedulerLink::open() {
  alone_since_ = io::Loop::now();
  try_to_connect();
}

void SchedulerLink::close(std::function<void()> closed) {
  retired_ = true;
  closed_ = std::move(closed);
  connection_ ? connection_->close() : closed_();
}

void SchedulerLink::try_to_connect() {
  if (retired_) return;
  // Whoever sends has a bound of its own.
  const io::ConnectionOptions options{.queue_limit_bytes = std::numeric_limits<std::size_t>::max()};
  io::connect(
      loop_, settings_.sched_host, settings_.sched_port, kConnectLimit,
      [this](auto made) { made ? connected(*std::move(made)) : try_again(made.error()); }, options);
}

void SchedulerLink::connected(std::shared_ptr<io::Connection> connection) {
  if (retired_) return;
  connection_ = std::move(connection);
  answered_ = false;
  connection_->start({.on_message = [this](wire::Message m) { received(std::move(m)); },
                      .on_closed = [this](const Error& why) { broke(why); }});
  loop_.after(std::min(kAnswerLimit, settings_.scheduler_timeout), [this, number = ++connections_] {
    if (connection_ && !answered_ && number == connections_) {
      connection_->abort(kNoScheduler);
    }
  });
  handlers_.on_up();
}

void SchedulerLink::received(wire::Message message) {
  if (!std::exchange(answered_, true)) {
    delay_ = kFirstDelay;
    handlers_.on_in_reach();
  }
  handlers_.on_message(std::move(message));
}

void SchedulerLink::broke(const Error& why) {
  connection_.reset();
  if (closed_) return closed_();
  handlers_.on_down();
  if (!answered_) return try_again(kNoScheduler);
  alone_since_ = io::Loop::now();
  try_again(why);
}

void SchedulerLink::try_again(const Error& why) {
  if (retired_) return;
  const Duration left = alone_since_ + settings_.scheduler_timeout - io::Loop::now();
  if (left <= Duration{}) handlers_.on_out_of_reach(no_scheduler(settings_, why.what));
  // The last try before the limit is at the limit.
  const Duration longest = left > Duration{} ? std::max(left, kFirstDelay) : kLastDelay;
  loop_.after(std::min(delay_, longest), [this] { try_to_connect(); });
  delay_ = std::min(kLastDelay, delay_ * 2);
}

}  // namespace holdfast::runtime
