// The rank's part in a group: it joins the group, loses it by a fault, and leaves it.
#pragma once

#include <optional>
#include <string>

#include "base/ids.h"
#include "core/trainer/events.h"
#include "core/trainer/program_call.h"
#include "core/trainer/training.h"
#include "core/trainer/training_end.h"

namespace holdfast::trainer {

class GroupMembership {
 public:
  GroupMembership(Training& training, ProgramCall& call, TrainingEnd& end)
      : training_(training), call_(call), end_(end) {}

  void on(const StepBegun& e);
  void on(const Formed& e);
  void on(const NotFormed& e);

  // The rank has a new generation to train in. It has no group if a rank has ended its training;
  // kNoRank: none has.
  void go_on(Rank ended) { ended_ = ended; }
  // The scheduler is to form a new generation: this one has lost its group, or pages.
  void say_lost() { training_.say(wire::GroupLost{training_.generation, training_.pages_lost}); }
  void form();
  // The group has ended, or was never formed. The cause is waited for as long as `patience`.
  void lose(Duration patience);
  void leave(bool reported);
  void deadline_passed();  // Asks again for the cause of the loss, or gives up.

  [[nodiscard]] bool exchanges() const { return exchanges_; }  // As in Formed.
  // While the rank leaves its group: whether the report for the scheduler is made already.
  [[nodiscard]] bool has_reported() const { return reported_; }

 private:
  Training& training_;
  ProgramCall& call_;
  TrainingEnd& end_;
  Rank ended_ = kNoRank;
  bool reformed_ = false;   // A group was lost during this call.
  bool linked_ = false;     // As in Formed.
  bool exchanges_ = false;  // As in Formed.
  bool reported_ = false;
  // While kUncertain, if the group had links: until then, GroupLost is said again and again.
  std::optional<Instant> gives_up_at_;
  std::string not_formed_;  // While kUncertain: why the group could not be formed.
};

}  // namespace holdfast::trainer
