// A step, from where the program has ended it until it is made: its sums, the stage, the exchange
// of private parts, the commit barrier and the update.
#pragma once

#include <optional>
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
  void on(const Updated& e);
  void on(const PartKept& e);
  void on(const SnapshotAsked& e);
  // What the newest assignment says: while `pauses` is odd, the rank comes to no commit barrier.
  // `anew`: the scheduler may not know that this rank stands still.
  void hear(std::uint64_t pauses, bool anew);

  [[nodiscard]] Version target() const { return target_; }

 private:
  void arrive();
  void pass();
  void update();
  [[nodiscard]] bool is_paused() const { return pauses_ % 2 == 1; }
  void say(wire::SnapshotWord word, const SnapshotAsked& asked, std::string why = {});
  void met(Outcome outcome, const std::string& why);

  Training& training_;
  ProgramCall& call_;
  GroupMembership& group_;
  Version target_ = 0;                    // The version that the newest step makes.
  double loss_ = 0;                       // The loss in that step.
  std::optional<SnapshotAsked> asked_;    // Of a version that is not made yet.
  std::optional<SnapshotAsked> keeps_;    // Its part is being copied.
  std::uint64_t pauses_ = 0;              // As in wire::Assignment.
  std::optional<wire::Progress> untold_;  // Of the newest step, if it was not told of.
  Generation told_generation_ = 0;        // In the last Progress.
  Instant told_at_{};                     // When that was said.
};

}  // namespace holdfast::trainer
