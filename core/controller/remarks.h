// Remarks: what all users of the job are told on their terminals, though it decides nothing. Each
// agent is told each of them once, also one that connects later. The journal keeps them, so a
// scheduler that is started again knows them all.
#pragma once

#include <vector>

#include "core/controller/job.h"

namespace holdfast::controller {

class Remarks {
 public:
  explicit Remarks(Job& job) : job_(job) {}

  void tell(Rank rank, const wire::Reason& what);
  [[nodiscard]] bool is_full() const {
    return all_.size() >= wire::kMaxRemarks / 2;
  }                                                // For drills.
  void tell_again();                               // To agents that have come since.
  void restore(std::vector<wire::Remarked> kept);  // Those in the journal.
  [[nodiscard]] const std::vector<wire::Remarked>& all() const { return all_; }  // In order.

 private:
  Job& job_;
  std::vector<wire::Remarked> all_;
};

}  // namespace holdfast::controller
