// Pauses the job by a user's order, and has it go on.
//
// Each assignment says whether the job is paused. A rank that has heard so comes to no commit
// barrier, so the others wait for it: all end the step of which the barrier was complete, and no
// rank makes the next one. So one rank's word that it stands still is enough. It counts only for
// the order that the rank has heard: it may have gone on since an earlier one.
#pragma once

#include <optional>
#include <set>

#include "core/controller/job.h"
#include "core/controller/remarks.h"
#include "core/controller/rendezvous.h"

namespace holdfast::controller {

class Pauses {
 public:
  // An observer is told after so long at the latest whether the job stands still.
  static constexpr Duration kPatience = std::chrono::seconds(10);

  Pauses(Job& job, Rendezvous& rendezvous, Remarks& remarks)
      : job_(job), rendezvous_(rendezvous), remarks_(remarks) {}

  void receive(Link link, const wire::Pause& m);
  void go_on();
  void agent_came(Link link);
  void closed(Link link) { asks_.erase(link); }
  void check();
  [[nodiscard]] std::optional<Instant> deadline() const {
    return asks_.empty() ? std::nullopt : std::optional(answer_by_);
  }
  [[nodiscard]] bool stands_still() const { return stands_at_.has_value(); }

 private:
  void order(Link link, bool on);
  void change();
  void stand_still(Version version);
  void answer(const wire::Reason& reason);
  void remark(const wire::Reason& reason);

  Job& job_;
  Rendezvous& rendezvous_;
  Remarks& remarks_;
  std::optional<Version> stands_at_;  // Only while the job is paused, and a rank has said so.
  std::set<Link> asks_;               // Who waits to hear that it stands still.
  Instant answer_by_{};
};

}  // namespace holdfast::controller
