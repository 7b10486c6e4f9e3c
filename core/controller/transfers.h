// Transfers: places of a host that lives go to another one, since somebody asks for it, or since
// that one has fewer. Nobody loses a step by it.
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
  // All have reported. Whether places go to another host before there is a plan.
  [[nodiscard]] bool carry_out(const std::set<Rank>& disbelieved);

 private:
  struct Transfer {  // Other hosts shall have the places of one that lives.
    std::set<Rank> ranks;
    std::set<std::string> agents;  // That have them now.
    Link heir = 0;                 // An agent.
    Link asker = 0;                // An observer; 0: nobody has asked.
    bool drains = false;
    wire::Reason what;  // As the generation's cause.
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
  // Agents whose places went to others, or that were to have those of others: nothing moves to
  // them.
  std::set<std::string> emptied_;
  bool has_proven_ = false;  // Some generation, by a step of all.
};

}  // namespace holdfast::controller
