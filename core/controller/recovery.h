// The parts of a recovery that rest on what the ranks say: whether that can be true, from which
// version all go on (PLAN), and how far the ranks are.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/controller/job.h"
#include "core/controller/job_end.h"
#include "core/controller/membership.h"
#include "core/controller/remarks.h"
#include "core/controller/rendezvous.h"
#include "core/controller/transfers.h"

namespace holdfast::controller {

inline constexpr std::int64_t kMaxGroupsLost = 20;   // In a row, with no step of all ranks between.
inline constexpr std::size_t kMaxTextBytes = 65536;  // The longest text of a Failed.

class Recovery {
 public:
  Recovery(Job& job, JobEnd& job_end, Rendezvous& rendezvous, Membership& membership,
           Transfers& transfers, Remarks& remarks)
      : job_(job),
        job_end_(job_end),
        rendezvous_(rendezvous),
        membership_(membership),
        transfers_(transfers),
        remarks_(remarks) {}

  void receive(Link link, const wire::Report& m);
  // Whether it is of a rank that trains in the generation that runs, and may be true.
  bool receive(Link link, const wire::Progress& m);
  void receive(Link link, const wire::GroupLost& m);
  void receive(Link link, const wire::Remark& m);
  void receive(Link link, const wire::Finished& m);
  void receive(Link link, const wire::Failed& m);
  void maybe_plan();

  void maybe_tell_progress();
  // The new agent is told the next progress, with all others.
  void agent_came() {
    progress_told_.reset();
    remarks_.tell_again();
  }
  [[nodiscard]] std::optional<Instant> deadline() const;  // When maybe_tell_progress() is due.

 private:
  void disbelieve(Rank rank, Version said, Version possible);
  [[nodiscard]] bool disbelieve_some(std::set<Rank>& ended);
  void tell_of_snapshot(Version version);
  void proven(Rank rank, Version version);
  void reach(Version version);
  [[nodiscard]] bool contradicts_plan(Rank rank, const wire::Report& m) const;
  void begin_without_pages(Rank rank, std::int64_t pages);
  [[nodiscard]] bool has_progress_to_tell() const;
  [[nodiscard]] bool speaks_for_a_place(Link link) const;

  Job& job_;
  wire::Formation& formation_ = job_.formation;
  Roster& roster_ = job_.roster;
  Connections& connections_ = job_.connections;
  JobEnd& job_end_;
  Rendezvous& rendezvous_;
  Membership& membership_;
  Transfers& transfers_;
  Remarks& remarks_;
  std::int64_t groups_lost_ = 0;  // GroupLost messages since all ranks last made a step.
  // What all agents were told last; nullopt: nothing is told before the next Progress.
  std::optional<std::pair<Generation, Version>> progress_told_;
  Instant progress_next_{};  // Agents are not told of progress before then.
  double loss_ = 0;          // The newest that a rank has reported.
};

}  // namespace holdfast::controller
