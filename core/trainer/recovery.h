// What a rank does from the moment when its generation is stopped until it trains in the next: it
// parks, reports what it holds, carries out its order and goes on. A rank that joins the job takes
// the same way.
#pragma once

#include <optional>

#include "base/ids.h"
#include "core/assigned.h"
#include "core/trainer/events.h"
#include "core/trainer/group_membership.h"
#include "core/trainer/program_call.h"
#include "core/trainer/step_commit.h"
#include "core/trainer/training.h"
#include "core/trainer/training_end.h"

namespace holdfast::trainer {

class Recovery {
 public:
  Recovery(Training& training, ProgramCall& call, TrainingEnd& end, GroupMembership& group,
           StepCommit& step)
      : training_(training), call_(call), end_(end), group_(group), step_(step) {}

  void on(const JoinCalled& e);
  void on(const PagesLost& e);
  void on(const Assigned& e);
  void on(const GroupStopped& e);
  void on(const SumsIdle&);
  void on(const LeftGroup&);
  void on(const Repaired& e);

 private:
  void stop(Generation generation);
  void speak();
  void park();
  void say_parked();
  void report();
  void rest();
  void carry_out(const Assigned& order);
  void repair(Repair work);
  void say_unreadable(const std::string& why);
  void go(const Assigned& order);
  void unstage();
  [[nodiscard]] bool is_at_rest() const;

  Training& training_;
  ProgramCall& call_;
  TrainingEnd& end_;
  GroupMembership& group_;
  StepCommit& step_;
  std::optional<Assigned> order_;  // Came before the training thread could take it.
  Repair repair_;                  // While kRepairing.
  wire::Repaired repaired_;        // Of the newest generation whose order was carried out.
};

}  // namespace holdfast::trainer
