// The scheduler's decisions: who has which rank, and what all do after a fault. This class hands
// each event to the rule that it concerns. The rules are its fields, and each knows only those
// declared before it.
//
// Pure: no clock, no I/O, no threads, no randomness, no unordered containers. The same state and
// the same event give the same actions. A message leaves only when the record behind it is durable
// (Outbox). Why it is right: docs/protocol/recovery.md.
#pragma once

#include "base/ids.h"
#include "core/controller/addresses.h"
#include "core/controller/drills.h"
#include "core/controller/events.h"
#include "core/controller/hosts.h"
#include "core/controller/job.h"
#include "core/controller/job_end.h"
#include "core/controller/membership.h"
#include "core/controller/owners.h"
#include "core/controller/pauses.h"
#include "core/controller/recovery.h"
#include "core/controller/remarks.h"
#include "core/controller/rendezvous.h"
#include "core/controller/snapshots.h"
#include "core/controller/stalls.h"
#include "core/controller/stragglers.h"
#include "core/controller/transfers.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::controller {

class Machine {
 public:
  Machine(Options options, std::optional<wire::Formation> stored);
  Machine(const Machine&) = delete;  // The rules refer to job_.
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] Actions step(Instant now, const Event& event);

  // When TimePassed is wanted at the latest.
  [[nodiscard]] std::optional<Instant> deadline() const;

  [[nodiscard]] wire::Formation formation() const { return job_.record(); }
  [[nodiscard]] wire::Stage stage() const { return job_.formation.stage; }
  [[nodiscard]] Generation generation() const { return job_.formation.generation; }
  // The formation without its roster.
  [[nodiscard]] const wire::Formation& head() const { return job_.formation; }
  [[nodiscard]] const KeyValues& key_values() const { return job_.key_values; }
  // All were told to go on after a fault, and not all of them have made a step since.
  [[nodiscard]] bool is_recovering() const {
    return stage() == wire::Stage::kRunning && generation() > 1 && !rendezvous_.is_proven();
  }
  // The job is paused, and no rank can make a step any more.
  [[nodiscard]] bool stands_still() const { return pauses_.stands_still(); }
  [[nodiscard]] bool assembled() const { return job_.roster.assembled(); }
  [[nodiscard]] const std::vector<Member>& members() const { return job_.roster.members(); }
  [[nodiscard]] const Member* find(const std::string& node_id) const {
    return job_.roster.find(node_id);
  }
  [[nodiscard]] const std::map<Link, Peer>& peers() const { return job_.connections.all(); }
  [[nodiscard]] const std::map<Link, Agent>& agents() const { return job_.agents.here(); }
  [[nodiscard]] bool waits_for_place(const std::string& node_id, std::int64_t pid) const;
  // Which ranks hold up the others (kHoldsUp).
  [[nodiscard]] std::vector<wire::Reason> held_up_by() const { return stalls_.named(); }
  // What users were told of ranks, repairs, lost pages and drills, in order.
  [[nodiscard]] const std::vector<wire::Remarked>& remarks() const { return remarks_.all(); }
  // How many members the rules have looked at so far: the part of the work that grows with the job.
  [[nodiscard]] std::uint64_t looks() const { return job_.roster.looks(); }
  // The processes that have come before the ranks are given, by node id.
  [[nodiscard]] const std::map<std::string, Member>& arrivals() const {
    return job_.roster.arrivals();
  }
  [[nodiscard]] std::set<Link> snapshot_waits_for() const { return snapshots_.waits_for(); }

 private:
  void on(const Started& e);
  void on(const Connected& e);
  void on(const Received& e);
  void on(const Unreadable& e);
  void on(const Closed& e);
  void on(const ProvenDead& e);
  void on(const NotThere& e) { hosts_.receive(e); }
  void on(const Stored&) { job_.outbox.stored(); }
  void on(const TimePassed&);
  void on(const Interrupted& e);

  void receive(Link link, const wire::Register& m) { membership_.receive(link, m); }
  void receive(Link link, const wire::AgentState& m);
  void receive(Link link, const wire::Report& m) { recovery_.receive(link, m); }
  void receive(Link link, const wire::Repaired& m) { rendezvous_.receive(link, m); }
  void receive(Link link, const wire::Progress& m) {
    const bool counts = recovery_.receive(link, m);
    if (counts) stragglers_.hear(job_.connections.rank_at(link), m);
  }
  void receive(Link link, const wire::GroupLost& m) { recovery_.receive(link, m); }
  void receive(Link link, const wire::Remark& m) { recovery_.receive(link, m); }
  void receive(Link link, const wire::Finished& m) { recovery_.receive(link, m); }
  void receive(Link link, const wire::Failed& m) { recovery_.receive(link, m); }
  void receive(Link link, const wire::Move& m) { transfers_.receive(link, m); }
  void receive(Link link, const wire::Drill& m) { drills_.receive(link, m); }
  void receive(Link link, const wire::Snapshot& m);
  void receive(Link link, const wire::Pause& m) { pauses_.receive(link, m); }
  void receive(Link link, const wire::AskAddresses& m) { rendezvous_.receive(link, m); }
  void receive(Link link, const wire::Put& m);
  void receive(Link link, const wire::Get& m);
  template <class Other>
  void receive(Link, const Other&) {
  }  // on(Received) has dealt with heartbeats; all else is ignored.

  void forget_agent(Link link);
  void reject_word(Link link, const wire::Message& message);
  [[nodiscard]] const Member* member_on(const Peer& peer) const;

  Job job_;
  JobEnd job_end_{job_};
  Addresses addresses_{job_};
  Rendezvous rendezvous_{job_, addresses_};
  Membership membership_{job_, job_end_, rendezvous_, [this] { recovery_.maybe_plan(); }};
  Owners owners_{job_, membership_};
  Transfers transfers_{job_, job_end_, rendezvous_, owners_};
  HostWatch hosts_{job_, membership_, owners_};
  Remarks remarks_{job_};
  Recovery recovery_{job_, job_end_, rendezvous_, membership_, transfers_, remarks_};
  Drills drills_{job_, remarks_};
  Pauses pauses_{job_, rendezvous_, remarks_};
  Snapshots snapshots_{job_, rendezvous_, remarks_};
  Stalls stalls_{job_};
  Stragglers stragglers_{job_, remarks_};
};

}  // namespace holdfast::controller
