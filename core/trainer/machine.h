// What a rank does: the fate of its steps, and what the scheduler hears of them.
//
// The machine decides when the training thread parks, repairs its arena, joins a group, stages,
// commits and updates, and what becomes of a step that a fault has met. It alone knows whether the
// rank is parked, repairs or trains, what it holds, and up to which generation it was stopped. It
// hands each event to the rule that it concerns. The rules are its fields, and each knows only
// those declared before it.
//
// Pure: no clock, no I/O, no threads. Two threads of a worker bring events, one at a time. The
// training thread is in one call of the program at a time. It does the Work that it is given, in
// order, tells how that went, and goes back to the program with Return. The control thread brings
// what the scheduler assigns, and is answered at once, also while the training thread computes. Why
// it is right: docs/protocol/recovery.md.
#pragma once

#include <optional>

#include "base/ids.h"
#include "core/assigned.h"
#include "core/holding.h"
#include "core/trainer/events.h"
#include "core/trainer/group_membership.h"
#include "core/trainer/program_call.h"
#include "core/trainer/recovery.h"
#include "core/trainer/step_commit.h"
#include "core/trainer/training.h"
#include "core/trainer/training_end.h"

namespace holdfast::trainer {

class Machine {
 public:
  explicit Machine(Options options) : training_(options) {}
  Machine(const Machine&) = delete;  // The rules refer to training_.
  Machine& operator=(const Machine&) = delete;

  [[nodiscard]] Actions step(Instant now, const Event& event);

  // When the training thread, which waits for Work, must bring TimePassed. nullopt: no timer.
  [[nodiscard]] std::optional<Instant> deadline() const { return training_.deadline; }

  [[nodiscard]] State state() const { return training_.state; }
  [[nodiscard]] const Holding& holding() const { return training_.holding; }
  [[nodiscard]] Generation generation() const { return training_.generation; }
  // The newest generation for which the scheduler has stopped this rank.
  [[nodiscard]] Generation stopped_for() const { return training_.stopped_for; }

 private:
  void on(const JoinCalled& e) { recovery_.on(e); }
  void on(const StepBegun& e) { group_.on(e); }
  void on(const StepEnded& e) { step_.on(e); }
  void on(const EndCalled& e) { end_.on(e); }
  void on(const Repaired& e) { recovery_.on(e); }
  void on(const Formed& e) { group_.on(e); }
  void on(const NotFormed& e) { group_.on(e); }
  void on(const LeftGroup& e) { recovery_.on(e); }
  void on(const SumsDone& e) { step_.on(e); }
  void on(const Staged& e) { step_.on(e); }
  void on(const CopiesExchanged& e) { step_.on(e); }
  void on(const Arrived& e) { step_.on(e); }
  void on(const Updated& e) { step_.on(e); }
  void on(const PagesLost& e) { recovery_.on(e); }
  void on(const PartKept& e) { step_.on(e); }
  void on(const Assigned& e) { recovery_.on(e); }
  void on(const GroupStopped& e) { recovery_.on(e); }
  void on(const SumsIdle& e) { recovery_.on(e); }
  void on(const SnapshotAsked& e) { step_.on(e); }
  void on(const Released& e) { end_.on(e); }
  void on(const JobOver& e) { end_.on(e); }
  void on(const OutOfReach& e) { end_.on(e); }
  void on(const InReach& e) { end_.on(e); }
  void on(const TimePassed&);

  Training training_;
  ProgramCall call_{training_};
  TrainingEnd end_{training_, call_};
  GroupMembership group_{training_, call_, end_};
  StepCommit step_{training_, call_, group_};
  Recovery recovery_{training_, call_, end_, group_, step_};
};

}  // namespace holdfast::trainer
