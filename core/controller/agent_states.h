// What an agent says of itself: who it is, which places it has or asks for, and what it would take.
#pragma once

#include "core/controller/addresses.h"
#include "core/controller/hosts.h"
#include "core/controller/job.h"
#include "core/controller/job_end.h"
#include "core/controller/owners.h"
#include "core/controller/recovery.h"
#include "core/controller/rendezvous.h"
#include "core/controller/transfers.h"

namespace holdfast::controller {

class AgentStates {
 public:
  AgentStates(Job& job, JobEnd& job_end, const Addresses& addresses, Rendezvous& rendezvous,
              Owners& owners, Transfers& transfers, HostWatch& hosts, Recovery& recovery);

  void receive(Link link, const wire::AgentState& m);
  void forget(Link link);  // Its connection has ended, or is ended.

 private:
  Job& job_;
  AgentDirectory& agents_;
  JobEnd& job_end_;
  const Addresses& addresses_;
  Rendezvous& rendezvous_;
  Owners& owners_;
  Transfers& transfers_;
  HostWatch& hosts_;
  Recovery& recovery_;
};

}  // namespace holdfast::controller
