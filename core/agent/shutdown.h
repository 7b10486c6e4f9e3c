// How the agent ends: by whose failure, with what exit code, and what it waits for before.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/ids.h"
#include "core/agent/events.h"
#include "core/agent/job.h"
#include "core/agent/spares.h"
#include "wire/messages.h"

namespace holdfast::agent {

// How long an agent whose processes have all ended waits for a scheduler. That is long, because the
// hosts of a job may be started one after another.
inline constexpr Duration kLastWord = std::chrono::seconds(30);
// A launcher passes on a signal that the agent has got as well: one that comes so soon after the
// first is the same.
inline constexpr Duration kEcho = std::chrono::seconds(1);
// How long an agent waits for the answer to a failure that it reports, if it has reached a
// scheduler before.
inline constexpr Duration kAnswer = std::chrono::seconds(5);

class Shutdown {
 public:
  Shutdown(Job& job, Spares& spares) : job_(job), spares_(spares) {}

  void on(const Interrupted& e);
  void on(const GraceOver&);
  void on(const OutOfReach& e);
  void receive(const wire::JobEnded& m);
  void receive(const wire::Snapshot& m);
  void receive(const wire::Refused& m);
  void pause_over(std::uint64_t pause);

  // A process of this node has ended, and may have heard of the job's end.
  void hear_of_end(const Died& e, const std::string& node_id);
  // The job fails: ends all processes, and tells the scheduler.
  void fail(Exit result);
  void fail(Exit result, Process blamed);  // By the death of this process.
  // It has become known how this process ended. If the agent ends by that death, `result` counts.
  void explain(Process process, Exit result);
  void repeat_failure();  // On a new connection: the scheduler may not have heard of it yet.
  // `rehearsal`: the process that rehearses a rank; 0: none.
  // `made`: the newest step that all ranks have made; 0: none.
  void maybe_exit(Process rehearsal);

  // The workers were interrupted, and the scheduler has not been told yet.
  [[nodiscard]] bool workers_leave() const { return workers_leave_; }

 private:
  void have_job_go_on();
  void interrupt(wire::Reason reason, std::int32_t code);
  void say_interrupted();
  void end_all(bool gently);
  void stay();
  [[nodiscard]] bool is_awaited_elsewhere() const;
  [[nodiscard]] bool owes_last_word() const;
  [[nodiscard]] bool is_scheduler(Process process) const;
  [[nodiscard]] bool scheduler_runs() const;

  Job& job_;
  const Options& options_ = job_.options;
  Spares& spares_;
  Exit result_;
  Process blamed_ = 0;           // The process whose death result_ tells of.
  bool heard_end_ = false;       // The job's end is known, from the scheduler or an own process.
  bool is_saved_ = false;        // A snapshot was made for this end.
  bool stays_ = false;           // The agent stays only for what other hosts must hear or may need.
  bool gave_up_ = false;         // From now on, the agent does not stay for other hosts.
  std::uint64_t last_word_ = 0;  // The pause after which the agent leaves; 0: none.
  bool grace_over_ = false;      // A grace period has ended.
  bool workers_leave_ = false;
  std::int32_t signal_ = 0;           // It has asked for the end, and a snapshot is waited for.
  std::uint64_t snapshot_pause_ = 0;  // The pause after which it is not; 0: none.
  std::uint64_t echo_pause_ = 0;      // Until its end, another signal is the same one again.
};

}  // namespace holdfast::agent
