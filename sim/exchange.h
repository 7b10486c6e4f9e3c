// ValueExchange: the exchange of ranks before their sessions, by key-values of the scheduler, on a
// connection of its own. Each process puts a number of its own, and gets the numbers of all ranks.
// A spare asks before it has a rank. Each process also appends itself to the list, one value that
// all change.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/connections.h"
#include "sim/job.h"
#include "sim/scheduler.h"
#include "sim/transition.h"

namespace holdfast::sim {

class ValueExchange {
 public:
  ValueExchange(Job& job, Connections& connections, SchedulerShell& scheduler)
      : job_(job), connections_(connections), scheduler_(scheduler) {}

  // When this worker has waited for too long; nullopt: it does not wait.
  [[nodiscard]] static std::optional<Instant> ends(const Worker& worker);
  // Adds what the worker could do next for its exchange.
  void list(Index worker, std::vector<Transition>& possible) const;

  void begin(Index worker);  // Its rank is known.
  void ask(Index worker);    // It connects.
  void hear(Index worker, const wire::Message& message);

 private:
  [[nodiscard]] static std::uint64_t own_value(const Worker& worker);
  [[nodiscard]] bool wants_to_exchange(const Worker& worker) const;
  [[nodiscard]] bool has_all(const Worker& worker) const;
  void put_own(Worker& worker);
  void enlist(Worker& worker);
  void hear_of_list(Worker& worker, const wire::Got& got);
  void end(Index worker);

  Job& job_;
  Connections& connections_;
  SchedulerShell& scheduler_;
};

}  // namespace holdfast::sim
