// Whose places are whose. The scheduler grants them: a place without a living owner goes to an
// agent that takes places of others, or to whoever asks for it. A seat names its owner, and that is
// on record before anybody hears of it. An agent is told which places it has (Places) whenever its
// own table says otherwise.
#pragma once

#include "core/controller/job.h"
#include "core/controller/membership.h"

namespace holdfast::controller {

class Owners {
 public:
  Owners(Job& job, Membership& membership) : job_(job), membership_(membership) {}

  // What the agent asks for becomes its own as far as nobody else has it, and what it says of its
  // places is heard. `former`: what it has said of them before.
  void take_up(Link link, const std::map<std::string, PlaceWord>& former);
  // Those who ask for places of others may have them by now, if some place has lost its owner.
  void answer_askers();
  void set_changed() { have_changed_ = true; }  // An owner is silent, or gone.
  void answer_askers_in_time();
  [[nodiscard]] std::optional<Instant> deadline() const;  // Of this.
  void tell_who_has_them(Link link);

  // Its host counts as lost; or lives after all.
  void free_places(const Agent& lost);
  void take_back(const std::string& agent_id);
  // The places of lost hosts go to hosts that would take them: those of one host to one.
  void assign_free_places();
  // Of these, who are lost: nobody takes them.
  void tell_not_taken(const std::set<Rank>& ranks);

  // It is on record before anybody hears of it.
  void hand_over(const std::set<Rank>& ranks, Link heir);
  void tell_owners();
  // Places that it owns, and that its table lacks.
  [[nodiscard]] std::vector<std::string> lacking(const Agent& agent) const;
  [[nodiscard]] bool is_drained(const std::string& agent_id) const;
  // Whether it would take so many places more; and who would best.
  [[nodiscard]] bool takes(const Agent& agent, std::size_t places) const;
  [[nodiscard]] Link host_for(std::size_t places, const std::string& not_on,
                              const std::string& only_on) const;

 private:
  // Whether an agent may have a place that it asks for.
  enum class Right : std::uint8_t {
    kIts,     // It is the agent's, from now on if not before.
    kNotYet,  // It is that of another one, which may be lost.
    kLost,    // It was granted to another one since: the agent drops it.
  };
  [[nodiscard]] Right right_to(const std::string& node_id, const Agent& asker) const;
  [[nodiscard]] const Agent* owner_here(const std::string& node_id) const;
  void own(Rank rank, const std::string& agent_id);
  void retire(const Member& member);
  void set_free(const std::string& agent_id, bool free);
  void tell_places(Link link, Agent& agent);
  [[nodiscard]] std::map<std::string, std::set<Rank>> free_by_memory(
      const std::set<Rank>& ranks) const;
  void tell_lost(const std::set<Rank>& ranks, const std::string& heir);

  Job& job_;
  wire::Formation& formation_ = job_.formation;
  Roster& roster_ = job_.roster;
  AgentDirectory& agents_ = job_.agents;
  Membership& membership_;
  bool have_changed_ = false;  // Since the askers were answered.
  Instant askers_next_{};      // Before the ranks are given: when they are answered again.
  std::vector<std::pair<Link, Rank>> retired_;  // Their processes are to hear it.
  std::map<std::string, std::string> lost_;     // Hosts, by agent, whose places are free.
};

}  // namespace holdfast::controller
