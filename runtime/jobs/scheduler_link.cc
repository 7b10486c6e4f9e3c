#include "runtime/jobs/scheduler_link.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/text.h"
#include "os/host.h"
#include "os/random_bits.h"
#include "runtime/jobs/membership.h"
#include "runtime/jobs/tls_choice.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstDelay = 20ms;
constexpr Duration kLastDelay = 1s;
constexpr Duration kConnectLimit = 15s;  // All processes of a large job may come at once.
// The limit of a connection that only complains, or finds out who listens.
constexpr Duration kGlance = 1s;
constexpr Duration kPatience = 10s;  // Then the user hears that nobody has answered so far.
// If etcd decides which scheduler serves: how often to look at the leader file, and how long to try
// a scheduler whose host may be lost.
constexpr Duration kBetweenLooks = 100ms;
constexpr Duration kShortTry = 2s;

void drop(const Result<std::shared_ptr<io::Connection>>& made) {
  if (!made) return;
  (*made)->start({.on_message = [](const auto&) {}, .on_closed = [](const auto&) {}});
  (*made)->abort({Blame::kWorld, "the scheduler is elsewhere by now"});
}

}  // namespace

Error no_scheduler(const config::Settings& settings, const std::string& why) {
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g",
                std::chrono::duration<double>(settings.scheduler_timeout).count());
  const auto at = scheduler_of(settings);
  return {Blame::kWorld,
          cat("no scheduler answers at ", host_and_port(at.host, at.port), " within ", limit,
              " s (MS_SCHED_HOST, MS_SCHED_PORT, "
              "HOLDFAST_SCHEDULER_TIMEOUT or MS_TOPO_TIMEOUT): ",
              why)};
}

void complain_to_scheduler(const config::Settings& settings, const Error& why) {
  if (settings.role != config::Role::kWorker) return;
  auto membership = membership_of(settings, wire::PeerKind::kWorker);
  if (!membership || membership->in_the_clear()) return;
  membership->tls = nullptr;
  membership->tls_problem = why.what;
  io::Loop loop;
  const auto at = scheduler_of(settings);
  io::connect(loop, at.host, at.port, *std::move(membership), kGlance,
              [&](const auto&) { loop.stop(); });
  loop.run();
}

SchedulerLink::SchedulerLink(io::Loop& loop, const config::Settings& settings, wire::PeerKind kind,
                             Handlers handlers)
    : loop_(loop),
      settings_(settings),
      kind_(kind),
      handlers_(std::move(handlers)),
      delay_(kFirstDelay) {}

void SchedulerLink::open() {
  alone_since_ = io::Loop::now();
  try_to_connect();
  if (!settings_.etcd.empty()) look_for_another();
}

// Looks at the leader file again and again: the connection to a scheduler that is stopped, or whose
// host is lost, does not break.
void SchedulerLink::look_for_another() {
  if (retired_) return;
  loop_.after(kBetweenLooks, [this] { look_for_another(); });
  const auto now_at = scheduler_of(settings_);
  if (now_at.host == at_.host && now_at.port == at_.port) return;
  if (connection_) {
    connection_->abort({Blame::kWorld, "another scheduler serves the job"});
  } else if (tries_ != 0) {
    try_to_connect();
  }
}

void SchedulerLink::close(std::function<void()> closed) {
  retired_ = true;
  closed_ = std::move(closed);
  connection_ ? connection_->close() : closed_();
}

std::string SchedulerLink::local_address() const {
  return connection_ ? os::local_address(connection_->descriptor()) : std::string();
}

void SchedulerLink::try_to_connect() {
  if (retired_ || connection_) return;
  const std::uint64_t number = ++tries_;
  at_ = scheduler_of(settings_);
  auto membership = membership_of(settings_, kind_);
  if (!membership) return lack_membership(membership.error());
  const bool in_the_clear = membership->in_the_clear();
  // No limit, because the callers of send() have their own.
  const io::ConnectionOptions options{.queue_limit_bytes = std::numeric_limits<std::size_t>::max()};
  io::connect(
      loop_, at_.host, at_.port, *std::move(membership),
      std::min(at_.term == 0 ? kConnectLimit : kShortTry, settings_.scheduler_timeout),
      [this, in_the_clear, number](auto made) {
        if (number != tries_) return drop(made);
        if (!made) return try_again(made.error());
        if (in_the_clear && !may_stay_in_the_clear()) return try_to_connect();
        connected(*std::move(made));
      },
      options);
}

// There is no token: the scheduler has not made one yet, or has removed it. After the timeout, a
// connection that proves nothing finds out whether a scheduler listens, for the error message. This
// is not tried earlier, because the scheduler logs whom it refuses.
void SchedulerLink::lack_membership(const Error& why) {
  if (why.blame != Blame::kWorld || io::Loop::now() < alone_since_ + settings_.scheduler_timeout) {
    return try_again(why);
  }
  io::connect(loop_, at_.host, at_.port, membership_of_nobody(settings_, kind_), kGlance,
              [this, why](const auto& made) {
                if (made) return try_again(why);
                const std::string about =
                    was_up_ ? cat("job ", settings_.job,
                                  " has ended since this process lost its scheduler, whose log "
                                  "says how")
                            : why.what;
                try_again({why.blame, cat(made.error().what, "; ", about)});
              });
}

void SchedulerLink::connected(std::shared_ptr<io::Connection> connection) {
  if (retired_) return;
  connection_ = std::move(connection);
  delay_ = kFirstDelay;
  was_up_ = true;
  said_.clear();
  heard_.clear();
  connection_->start({.on_message = [this](wire::Message m) { handlers_.on_message(std::move(m)); },
                      .on_closed = [this](const Error& why) { broke(why); },
                      .on_unreadable = [this](const Error& why) { can_not_read(why); }});
  handlers_.on_up();
}

// Prints an error that a later try may cure (a new scheduler, another token), but only if it comes
// twice in a row: a scheduler that is killed closes its connections as one that refuses does.
void SchedulerLink::say_once(const Error& why) {
  if (std::exchange(heard_, why.what) != why.what) return;
  if (std::exchange(said_, why.what) == why.what) return;
  std::fprintf(stderr, "holdfast: %s\n", why.what.c_str());
}

// Another connection would bring the same message, so this process acts as if it were refused.
void SchedulerLink::can_not_read(const Error& why) {
  retired_ = true;
  handlers_.on_message(
      wire::Refused{{},
                    {.kind = wire::Reason::Kind::kUnreadable,
                     .detail = cat("what the scheduler says can not be read: ", why.what)}});
}

void SchedulerLink::broke(const Error& why) {
  connection_.reset();
  if (closed_) return closed_();
  handlers_.on_down();
  alone_since_ = io::Loop::now();
  try_again(why);
}

void SchedulerLink::try_again(const Error& why) {
  if (retired_) return;
  if (why.blame != Blame::kWorld) say_once(why);
  if (!was_up_ && kind_ == wire::PeerKind::kAgent && io::Loop::now() > alone_since_ + kPatience &&
      !std::exchange(said_nobody_, true)) {
    std::fprintf(stderr,
                 "holdfast: no scheduler answers at %s so far (%s): is the first host's part "
                 "started, and are address and port the same in all? Waits on\n",
                 host_and_port(at_.host, at_.port).c_str(), why.what.c_str());
  }
  const Duration left = alone_since_ + settings_.scheduler_timeout - io::Loop::now();
  if (left <= Duration{}) handlers_.on_out_of_reach(no_scheduler(settings_, why.what));
  // The last try before the limit is at the limit.
  const Duration longest = left > Duration{} ? std::max(left, kFirstDelay) : kLastDelay;
  // The delay is random: all processes of a job lose the scheduler at once, and are not to come
  // back at once.
  const auto drawn = static_cast<Duration::rep>(os::random_bits() >> 1) % (delay_.count() / 2);
  loop_.after(std::min(delay_ / 2 + Duration(drawn), longest), [this] { try_to_connect(); });
  delay_ = std::min(kLastDelay, delay_ * 2);
}

}  // namespace holdfast::runtime
