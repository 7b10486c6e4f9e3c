// A step, from where the program has ended it until it is made: its sums, the stage, the exchange
// of private parts, the commit barrier and the update.
#pragma once

#include <string>

#include "base/ids.h"
#include "core/trainer/events.h"
#include "core/trainer/group_membership.h"
#include "core/trainer/program_call.h"
#include "core/trainer/training.h"

namespace holdfast::trainer {

class StepCommit {
 public:
  StepCommit(Training& training, ProgramCall& call, GroupMembership& group)
      : training_(training), call_(call), group_(group) {}

  void on(const StepEnded& e);
  void on(const SumsDone& e);
  void on(const Staged&);
  void on(const CopiesExchanged& e);
  void on(const Arrived& e);
  void on(const Updated&);

  [[nodiscard]] Version target() const { return target_; }

 private:
  void arrive();
  void update();
  void met(Outcome outcome, const std::string& why);

  Training& training_;
  ProgramCall& call_;
  GroupMembership& group_;
  Version target_ = 0;              // The version that the newest step makes.
  double loss_ = 0;                 // The loss in that step.
  Generation told_generation_ = 0;  // In the last Progress.
  Instant told_at_{};               // When that was said.
};

}  // namespace holdfast::trainer
