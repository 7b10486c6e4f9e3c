// WorkerEvents: events for the machines of workers. They are delivered one after another, as by a
// worker's threads: what the handling of an event adds comes after it.
#pragma once

#include <deque>
#include <functional>
#include <utility>
#include <variant>

#include "sim/processes.h"

namespace holdfast::sim {

class WorkerEvents {
 public:
  struct Told {
    Index worker;
    std::variant<member::Event, trainer::Event> event;
  };

  // `deliver`: lets the worker's machine handle the event, and carries out its actions. World gives
  // it, so that Workers and Training need not know each other.
  explicit WorkerEvents(std::function<void(const Told&)> deliver) : deliver_(std::move(deliver)) {}

  void tell_member(Index worker, const member::Event& event) { add({worker, event}); }
  void tell_trainer(Index worker, const trainer::Event& event) { add({worker, event}); }

 private:
  void add(Told told) {
    told_.push_back(std::move(told));
    if (std::exchange(bringing_, true)) return;
    while (!told_.empty()) {
      const Told next = std::move(told_.front());
      told_.pop_front();
      deliver_(next);
    }
    bringing_ = false;
  }

  std::function<void(const Told&)> deliver_;
  std::deque<Told> told_;
  bool bringing_ = false;
};

}  // namespace holdfast::sim
