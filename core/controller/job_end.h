// The job's end: when it has come, and how all hear of it before this scheduler leaves (P32).
#pragma once

#include "core/controller/job.h"

namespace holdfast::controller {

class JobEnd {
 public:
  explicit JobEnd(Job& job) : job_(job) {}

  void end(bool success, wire::Reason reason);
  void maybe_all_left();
  void maybe_nobody_came();
  void go_on();  // This scheduler was started again, and finds that the job has ended.

  void tell(Link link);
  void tell_own_agent(Link link);  // Tells the agent that was waited for, and leaves.
  void leave_in_time();
  [[nodiscard]] std::optional<Instant> deadline() const;

 private:
  void tell_all();
  void wait_for_agent();
  void leave();

  Job& job_;
  wire::Formation& formation_ = job_.formation;
  std::optional<Instant> leaves_at_;  // While an agent is waited for: when to leave at the latest.
  bool left_ = false;
};

}  // namespace holdfast::controller
