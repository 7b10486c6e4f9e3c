// AnswerQueue: the values of keys that are on their way to processes.
//
// All ranks may ask for one large value at once, so only a few large answers are on their way at a
// time. A peer that does not read delays the others by a second, and gets no further answer until
// it has read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "core/controller/events.h"
#include "io/connection.h"
#include "io/loop.h"

namespace holdfast::runtime {

using Connections = std::map<controller::Link, std::shared_ptr<io::Connection>>;

class AnswerQueue {
 public:
  // Requires: `loop` and `connections` outlive the queue, and the queue outlives the loop's run.
  AnswerQueue(io::Loop& loop, const Connections& connections)
      : loop_(loop), connections_(connections) {}

  // Closes the answer's connection if too many bytes wait.
  void add(const controller::Answer& answer);
  // A second Get with the same id takes the place of the first, whose answer is then not wanted any
  // more.
  void withdraw(controller::Link link, std::uint64_t id);
  // This connection has sent all that it had, or is closed.
  void drained(controller::Link link);

 private:
  controller::Answer take(std::deque<controller::Answer>::iterator from);
  void send();

  io::Loop& loop_;
  const Connections& connections_;
  std::deque<controller::Answer> answers_;  // They wait to be sent.
  // In how many of answers_ each value is.
  std::map<const wire::KeyValue*, std::size_t> waiting_;
  std::size_t waiting_bytes_ = 0;         // The size of these values, each counted once.
  std::set<controller::Link> answering_;  // The links to which a large answer is on its way.
  bool has_timer_ = false;
};

}  // namespace holdfast::runtime
