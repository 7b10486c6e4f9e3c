// Which process has which place: who may take it, whose lease has run out, who has died.
#pragma once

#include <functional>

#include "core/controller/job.h"
#include "core/controller/job_end.h"
#include "core/controller/rendezvous.h"

namespace holdfast::controller {

class Membership {
 public:
  // `plan` is called after a process has ended in good order: ranks that want to train with it must
  // hear that it will not join. It stands for Recovery::maybe_plan, since this class may not know
  // Recovery.
  Membership(Job& job, JobEnd& job_end, Rendezvous& rendezvous, std::function<void()> plan)
      : job_(job), job_end_(job_end), rendezvous_(rendezvous), plan_(std::move(plan)) {}

  void receive(Link link, const wire::Register& m);
  // Gives the ranks, if all processes are here and have none yet.
  void maybe_assemble();
  void maybe_tell_arrivals();
  [[nodiscard]] std::optional<Instant> deadline() const;  // When maybe_tell_arrivals() is due.

  void check_leases();
  void lose(const Member& member);
  void died(const Member& member, const wire::Ending& ending, bool in_good_order,
            std::uint64_t detected_ns);
  void detach(const Member& member);
  void evict(const Member& member);
  void forget_arrival(const std::string& node_id);
  void apply_word(const wire::PlaceState& place);
  void answer_waiting(const std::string& node_id);

 private:
  // Whether a process may have a place that another has, or had.
  struct Verdict {
    enum class Kind : std::uint8_t { kTakes, kWaits, kNever };
    Kind kind = Kind::kTakes;
    wire::Reason reason;
  };
  void admit_early(Link link, const wire::Register& m);
  void admit(Link link, Rank rank, const wire::Register& m);
  [[nodiscard]] Verdict verdict_on(Rank rank, const wire::Register& m) const;
  [[nodiscard]] Verdict early_verdict_on(const wire::Register& m) const;
  [[nodiscard]] Verdict surplus(const wire::Register& m) const;
  void turn_away(Link link, const wire::Register& m, const Verdict& verdict);
  [[nodiscard]] wire::Reason leased(Rank rank) const;
  void note_taken(const wire::Register& m, const wire::Reason& reason);
  void keep_waiting(Link link, const wire::Register& m, wire::Reason reason);
  [[nodiscard]] bool may_assemble();
  void assemble();
  void take_over(Rank rank, Link link, const wire::Register& m);
  void welcome(Rank rank);
  [[nodiscard]] std::optional<wire::Reason> elsewhere(const wire::Register& m) const;
  void attach(const Member& member, Link link, const wire::Register& m);
  void apply_word_on(const std::string& node_id);
  void tell_how(const Member& member, const wire::PlaceState& place);

  Job& job_;
  wire::Formation& formation_ = job_.formation;
  Roster& roster_ = job_.roster;
  AgentDirectory& agents_ = job_.agents;
  Connections& connections_ = job_.connections;
  JobEnd& job_end_;
  Rendezvous& rendezvous_;
  std::function<void()> plan_;
  bool arrivals_are_told_ = true;  // The arrivals have been told how many they are.
  Instant arrivals_next_{};        // The arrivals are not told again before then.
  std::string unspoken_;  // Node id of an arrival for which no agent had spoken, when last looked.
};

}  // namespace holdfast::controller
