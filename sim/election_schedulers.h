// ElectionSchedulers: the scheduler processes of a simulated election. Each drives its machine of
// core/election, and does what the shell of a scheduler would do: it asks etcd, leads, serves.
#pragma once

#include <cstdint>
#include <string>

#include "core/controller/takeover.h"
#include "core/election/machine.h"
#include "sim/election_jobs.h"
#include "sim/etcd_client.h"

namespace holdfast::sim {

class ElectionSchedulers {
 public:
  using Index = ElectionJobs::Index;
  using Scheduler = ElectionJobs::Scheduler;

  ElectionSchedulers(ElectionJobs& jobs, EtcdClient& client) : jobs_(jobs), client_(client) {}

  void start(Index host);  // The host's agent starts a scheduler, unless that host is over.
  void die(Index p, bool restarts, const std::string& why);
  // The one that has the key and serves; null: none.
  [[nodiscard]] const Scheduler* leader() const;
  [[nodiscard]] std::uint32_t steps() const { return steps_; }  // Of all machines.

 private:
  using Host = ElectionJobs::Host;

  void step(Index p, const election::Event& event);
  void end(Index p, const std::string& why);
  void keep_alive(Index p);
  void carry_out(Index p, const election::Look&);
  void carry_out(Index p, const election::Remove& remove);
  void carry_out(Index p, const election::Try& what);
  void carry_out(Index p, const election::Ask& ask);
  void carry_out(Index p, const election::StandBy& others) { stand_by(p, others.leader.run); }
  void stand_by(Index p, std::uint64_t run);
  void carry_out(Index p, const election::Found& found);
  void carry_out(Index, const election::SayWhy&) {}
  void carry_out(Index p, const election::Lead& lead);
  void carry_out(Index p, const election::EndWithJob&);
  void carry_out(Index p, const election::Refuse&);
  void carry_out(Index p, const election::GiveUp&);
  void put(Index p, const election::Leader& leader, std::int64_t lease);
  void drop_lease(Index p);

  // The work of a scheduler that leads.
  void open_journal(Index p);
  void begin(Index p);
  void publish(Index p);
  void serve(Index p);
  [[nodiscard]] controller::Candidate candidate(Index p) const;
  [[nodiscard]] bool lived_since(std::uint64_t run, Instant since) const;

  ElectionJobs& jobs_;
  EtcdClient& client_;
  std::uint32_t steps_ = 0;
};

}  // namespace holdfast::sim
