// Drills: passes on to a rank what an observer wants to happen to it, in a job that takes drills.
#pragma once

#include <cstdint>
#include <vector>

#include "core/controller/job.h"
#include "core/controller/remarks.h"

namespace holdfast::controller {

// The number of the remark of the drill that has ordered this fault; 0: none has. A drill is for
// one process, and a fault that it can not have caused is not its own.
[[nodiscard]] std::uint64_t drill_behind(const wire::Reason& fault,
                                         const std::vector<wire::Remarked>& remarks);

class Drills {
 public:
  Drills(Job& job, Remarks& remarks) : job_(job), remarks_(remarks) {}

  void receive(Link link, const wire::Drill& m);

 private:
  // Why the rank can not be drilled so; kDrill: it can.
  [[nodiscard]] wire::Reason judge(const wire::Drill& m) const;
  // Likewise of a host. `link`: of its agent.
  [[nodiscard]] wire::Reason judge_host(const wire::Drill& m, Link& link) const;

  Job& job_;
  Remarks& remarks_;
};

}  // namespace holdfast::controller
