// Transfers: moves places from a live host to another one, because a person asks for it or because
// the other host has fewer. No step is lost by this.
#pragma once

#include "core/controller/job.h"
#include "core/controller/job_end.h"
#include "core/controller/owners.h"
#include "core/controller/rendezvous.h"

namespace holdfast::controller {

class Transfers {
 public:
  Transfers(Job& job, JobEnd& job_end, Rendezvous& rendezvous, Owners& owners)
      : job_(job), job_end_(job_end), rendezvous_(rendezvous), owners_(owners) {}

  void receive(Link link, const wire::Move& m);
  void closed(Link link);
  // All ranks have made a step in this generation.
  void proven();
  void maybe_balance();
  // Called when all have reported. Returns whether places go to another host first: there is no
  // plan before that.
  [[nodiscard]] bool carry_out(const std::set<Rank>& disbelieved);

 private:
  struct Transfer {  // Places that are to move to another host.
    std::set<Rank> ranks;
    std::set<std::string> agents;  // The agents that have the places now.
    Link heir = 0;                 // The agent that gets them.
    Link asker = 0;                // The observer that asked; 0: nobody did.
    bool drains = false;
    wire::Reason what;  // The cause of the generation that stops the ranks for this.
  };
  [[nodiscard]] std::optional<wire::Reason> plan_move(const wire::Move& m,
                                                      Transfer& transfer) const;
  void begin();
  void drain(const Transfer& transfer);
  void answer(const Transfer& transfer, wire::Reason reason);

  Job& job_;
  wire::Formation& formation_ = job_.formation;
  Roster& roster_ = job_.roster;
  AgentDirectory& agents_ = job_.agents;
  JobEnd& job_end_;
  Rendezvous& rendezvous_;
  Owners& owners_;
  std::optional<Transfer> transfer_;
  // Agents whose places went to others, or to which a balancing move was tried: maybe_balance()
  // moves nothing to them.
  std::set<std::string> emptied_;
  bool has_proven_ = false;  // All ranks have made a step in some generation.
};

}  // namespace holdfast::controller
