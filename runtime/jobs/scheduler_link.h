// SchedulerLink: a process's connection to the scheduler of its job. Whenever it breaks, it is made
// anew, for as long as it takes.
//
// Everything here belongs to the loop's thread: call it from callbacks of the loop, or while no
// thread runs the loop. All handlers are called there. A link lives as long as its loop runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "config/settings.h"
#include "io/connection.h"
#include "io/loop.h"
#include "runtime/jobs/leader_file.h"
#include "wire/messages.h"

namespace holdfast::runtime {

// The error for a process that has waited for the scheduler for longer than
// HOLDFAST_SCHEDULER_TIMEOUT.
[[nodiscard]] Error no_scheduler(const config::Settings& settings, const std::string& why);

// Tells the scheduler, if it is in reach at once, that this worker can not begin TLS, and why. Does
// nothing in a process that is no worker. Waits for a second at most.
void complain_to_scheduler(const config::Settings& settings, const Error& why);

class SchedulerLink {
 public:
  struct Handlers {
    // There is a connection, and at its other end a scheduler of this job.
    std::function<void()> on_up;
    // A message that can not be decoded arrives as a Refused for that reason, and is the last.
    std::function<void(wire::Message)> on_message;
    // The connection broke. Its scheduler may not have heard all that was sent.
    std::function<void()> on_down = [] {};
    // No scheduler has been in reach for HOLDFAST_SCHEDULER_TIMEOUT. Called again at every try that
    // fails from then on.
    std::function<void(const Error&)> on_out_of_reach = [](const Error&) {};
  };

  // `kind`: what this process is to the scheduler.
  SchedulerLink(io::Loop& loop, const config::Settings& settings, wire::PeerKind kind,
                Handlers handlers);
  SchedulerLink(const SchedulerLink&) = delete;
  SchedulerLink& operator=(const SchedulerLink&) = delete;

  void open();                               // Begins to connect. Call it once.
  void send(const wire::Message& message) {  // Drops the message if there is no connection.
    if (connection_) connection_->send(message);
  }
  // The numeric address from which this process reaches its scheduler; empty: there is no
  // connection.
  [[nodiscard]] std::string local_address() const;
  // The job is over: when this connection breaks, no new one is made.
  void retire() { retired_ = true; }
  // Sends what is queued, for at most two seconds; then calls `closed`, and no handler any more.
  void close(std::function<void()> closed);

 private:
  void try_to_connect();
  void look_for_another();
  void lack_membership(const Error& why);
  void connected(std::shared_ptr<io::Connection> connection);
  void say_once(const Error& why);
  void can_not_read(const Error& why);
  void broke(const Error& why);
  void try_again(const Error& why);

  io::Loop& loop_;
  const config::Settings& settings_;
  const wire::PeerKind kind_;
  const Handlers handlers_;
  std::shared_ptr<io::Connection> connection_;
  // The last error that was not kWorld (heard_), and the last one that was printed (said_). See
  // say_once().
  std::string heard_;
  std::string said_;
  Instant alone_since_{};
  Duration delay_;           // Before the next try.
  SchedulerAddress at_;      // Where the scheduler was looked for last.
  std::uint64_t tries_ = 0;  // Numbers the tries: the result of an older one is dropped.
  bool was_up_ = false;
  bool said_nobody_ = false;
  bool retired_ = false;
  std::function<void()> closed_;
};

}  // namespace holdfast::runtime
