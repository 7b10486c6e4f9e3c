// Hosts: which of them are lost. A host is silent together: its agent and all its workers. Where
// one of these speaks, the host lives, and a process that has died there is its agent's to tell of.
#pragma once

#include "core/controller/job.h"
#include "core/controller/membership.h"
#include "core/controller/owners.h"

namespace holdfast::controller {

class HostWatch {
 public:
  HostWatch(Job& job, Membership& membership, Owners& owners)
      : job_(job), membership_(membership), owners_(owners) {}

  void hear(Agent& agent);
  void hear_member(const Member& member);
  void receive(const NotThere& answer);
  void miss(Agent agent);
  void miss_all();
  void hang_up(const Member& member);
  void look_at(Instant when);
  void check();
  [[nodiscard]] std::optional<Instant> deadline() const;

 private:
  [[nodiscard]] bool has_hung_up(const Agent& agent) const;
  [[nodiscard]] bool is_proven_lost(const Agent& agent) const;
  void ask(Agent& agent);
  [[nodiscard]] Duration silence_of(const Agent& agent) const;
  [[nodiscard]] bool is_silent_for_long(Agent& agent);
  void check_host(Agent& agent, std::set<Rank>& lost);

  Job& job_;
  Roster& roster_ = job_.roster;
  AgentDirectory& agents_ = job_.agents;
  Membership& membership_;
  Owners& owners_;
  std::optional<Instant> look_at_;  // When some host may count as lost.
};

}  // namespace holdfast::controller
