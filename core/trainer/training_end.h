// How the training of this rank ends: by its program, with the job, or because no scheduler is in
// reach.
#pragma once

#include <optional>

#include "core/trainer/events.h"
#include "core/trainer/program_call.h"
#include "core/trainer/training.h"
#include "wire/messages.h"

namespace holdfast::trainer {

class TrainingEnd {
 public:
  TrainingEnd(Training& training, ProgramCall& call) : training_(training), call_(call) {}

  void on(const EndCalled&);
  void on(const Released&);
  void on(const JobOver& e);
  void on(const OutOfReach& e);
  void on(const InReach&) { unreachable_.reset(); }
  // Repeats that the training has ended, if that was said: the scheduler may not have heard it.
  void repeat();
  // While the training thread waits for others, it takes in what has come before: the job's end, or
  // the loss of the scheduler. Returns whether that has ended its call.
  bool cuts_wait_short();

 private:
  Training& training_;
  ProgramCall& call_;
  std::optional<wire::Finished> finished_;   // What the scheduler was told when the program ended.
  std::optional<wire::Reason> unreachable_;  // While no scheduler is in reach: why.
};

}  // namespace holdfast::trainer
