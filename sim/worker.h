// Workers: the workers as processes: they start, talk through their member machine, and die.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/connections.h"
#include "sim/exchange.h"
#include "sim/job.h"
#include "sim/journal.h"
#include "sim/transition.h"
#include "sim/worker_events.h"

namespace holdfast::sim {

class Workers {
 public:
  Workers(Job& job, Connections& connections, const Journal& journal, ValueExchange& exchange,
          WorkerEvents& events)
      : job_(job),
        connections_(connections),
        journal_(journal),
        exchange_(exchange),
        events_(events) {}

  Index add(agent::Process process, std::string node_id, Incarnation incarnation,
            std::uint64_t attempt, bool spare, bool serves, Index agent = kNone);
  void add_by_hand(const std::string& node_id);  // A person starts a process for this place.
  // A process of another host asks for the place of `worker`.
  void add_foreign(Index worker);
  void place(Worker& worker);  // The worker knows its place now, and begins to ask for its rank.
  [[nodiscard]] std::string endpoint_of(const Worker& worker) const;
  void carry_out(Index worker, const member::Action& action);
  void miss_scheduler(Index worker);  // It has tried to connect for too long.
  void list_addresses(Index worker, std::vector<Transition>& possible) const;
  void find_addresses(Index worker);
  // `lifeline`: the agent learns of the death first by the lifeline, without an exit code. `loses`:
  // the messages that the worker sent last are lost.
  void die(Index worker, std::int32_t code, bool lifeline, bool loses);

 private:
  Job& job_;
  Connections& connections_;
  const Journal& journal_;
  ValueExchange& exchange_;
  WorkerEvents& events_;
};

}  // namespace holdfast::sim
