// Remarks: what all users of the job are told on their terminals, though it decides nothing. Each
// agent is told each of them once, also one that connects later.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/controller/job.h"

namespace holdfast::controller {

class Remarks {
 public:
  explicit Remarks(Job& job) : job_(job) {}

  static constexpr std::size_t kMost = 200;  // In a job. All that come later are left out.

  void tell(Rank rank, const wire::Reason& what);
  [[nodiscard]] bool is_full() const { return all_.size() >= kMost / 2; }  // For drills.
  void tell_again();  // To agents that have come since.
  [[nodiscard]] const std::vector<wire::Reason>& all() const { return all_; }

 private:
  Job& job_;
  std::vector<wire::Reason> all_;            // In order,
  std::map<std::string, std::size_t> told_;  // and how many by each agent, by its id.
};

}  // namespace holdfast::controller
