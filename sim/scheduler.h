// SchedulerShell: the scheduler's process. It drives the controller's machine, with its journal and
// its ends of the connections.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/connections.h"
#include "sim/job.h"
#include "sim/journal.h"
#include "sim/memory.h"

namespace holdfast::sim {

class SchedulerShell {
 public:
  SchedulerShell(Job& job, Connections& connections, Journal& journal, const Memory& memory)
      : job_(job), connections_(connections), journal_(journal), memory_(memory) {}

  void start();
  void kill(std::int32_t code, bool store_survives);
  void tell(const controller::Event& event);
  void store_done();
  void timer();

  // A client makes a connection.
  Index connect(Index worker, Index agent);
  void deliver_up(Index link);
  void hear(Index link, wire::Message message);
  void hear_end(Index link);        // The end of a connection.
  void order(wire::Message order);  // Somebody gives it, and does not wait for the answer.

  // Deaths that it can prove, and answers to its probes, on their way to it.
  [[nodiscard]] const std::vector<controller::ProvenDead>& proofs() const { return proofs_; }
  [[nodiscard]] const std::vector<controller::NotThere>& not_there() const { return not_there_; }
  void hear_proof(Index which) { tell(take(proofs_, which)); }
  void hear_not_there(Index which) { tell_and_check_evictions(take(not_there_, which)); }

 private:
  void accept(Index link);
  void check_agent_hears_first();
  void hear_of_step(const wire::Message& message);
  void carry_out(const controller::Action& action);
  void check_round();
  void check_blamed(const wire::Message& message);
  void check_told(Index link, const wire::Message& message);
  void tell_and_check_evictions(const controller::Event& event);
  void probe(const controller::Probe& probe);
  [[nodiscard]] Rank rank_in_roster(const std::string& node_id) const;
  void check_evictions(const std::set<std::string>& lost_before);
  [[nodiscard]] std::uint64_t record_print() const;

  Job& job_;
  Connections& connections_;
  Journal& journal_;
  const Memory& memory_;
  std::map<Index, wire::Snapshot> asked_;  // By link: the newest word about a snapshot.
  bool agent_told_end_ = false;            // An agent was told of the job's end at some time.
  bool worker_told_end_ = false;  // A worker was, by the actions that were just carried out.
  std::vector<controller::ProvenDead> proofs_;
  std::vector<controller::NotThere> not_there_;
};

}  // namespace holdfast::sim
