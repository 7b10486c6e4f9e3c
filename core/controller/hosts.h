// Decides which hosts are lost. A host counts as silent only if its agent and all its workers are
// silent. While one of these speaks, the host lives, and its agent tells of processes that die
// there.
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
  std::optional<Instant> look_at_;  // When check() is due: some host may count as lost then.
};

}  // namespace holdfast::controller
