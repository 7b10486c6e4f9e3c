// What an agent does with the processes of its host: starts, replaces, promotes, gives up. This
// class hands each event to the rule that it concerns. The rules are its fields, and each knows
// only those declared before it.
//
// Pure: no clock, no I/O, no processes. Why it is right: docs/protocol/recovery.md, "The agent".
#pragma once

#include <utility>
#include <vector>

#include "base/ids.h"
#include "core/address_book.h"
#include "core/agent/events.h"
#include "core/agent/hang_watch.h"
#include "core/agent/job.h"
#include "core/agent/placement.h"
#include "core/agent/rehearsal_runner.h"
#include "core/agent/reporter.h"
#include "core/agent/shutdown.h"
#include "core/agent/spares.h"
#include "core/agent/stall_watch.h"
#include "wire/messages.h"

namespace holdfast::agent {

class Machine {
 public:
  explicit Machine(Options options) : job_(std::move(options)) {}
  Machine(const Machine&) = delete;  // The rules refer to job_.
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] Actions step(const Event& event);

  [[nodiscard]] State state() const { return job_.state; }
  [[nodiscard]] const std::vector<Place>& places() const { return job_.places; }
  [[nodiscard]] bool beats() const { return job_.link == LinkState::kUp && is_far_; }

 private:
  void on(const Started&);
  void on(const Died& e);
  void on(const SpawnFailed& e);
  void on(const PauseOver& e);
  void on(const Looked& e);
  void on(const LinkUp& e);
  void on(const LinkDown&) { job_.link = LinkState::kDown; }
  void on(const Received& e);
  void on(const Interrupted& e) { shutdown_.on(e); }
  void on(const GraceOver& e) { shutdown_.on(e); }
  void on(const OutOfReach& e) { shutdown_.on(e); }
  void on(const SpareReady& e) { spares_.ready(e.process); }
  void on(const Inspected& e) { stalls_.on(e); }
  void on(const SnapshotDone& e) { job_.emit(Send{e.answer}); }

  void receive(const wire::JobProgress& m);
  void receive(const wire::JobEnded& m) { shutdown_.receive(m); }
  void receive(const wire::Refused& m) { shutdown_.receive(m); }
  void receive(const wire::Evict& m);
  void receive(const wire::Inspect& m) { stalls_.receive(m); }
  void receive(const wire::Places& m) { placement_.receive(m); }
  void receive(const wire::Addresses& m);
  void receive(const wire::Waiting& m);
  void receive(const wire::Drill& m);
  void receive(const wire::Snapshot& m);
  void receive(const wire::Pause& m);
  template <class Other>
  void receive(const Other&) {}

  Job job_;
  Spares spares_{job_};
  Shutdown shutdown_{job_, spares_};
  RehearsalRunner rehearsals_{job_, spares_, shutdown_};
  HangWatch hangs_{job_, rehearsals_};
  StallWatch stalls_{job_};
  Reporter reporter_{job_, spares_, rehearsals_, stalls_};
  Placement placement_{job_, spares_, shutdown_, rehearsals_, reporter_};
  Version version_ = 0;  // The newest step that all ranks have made.
  AddressBook book_;     // Where the ranks are, as the scheduler has said last.
  bool is_far_ = false;  // As in LinkUp.
};

}  // namespace holdfast::agent
