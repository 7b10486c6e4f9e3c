// Which agent owns which place. The scheduler grants places: one without a live owner goes to an
// agent that takes places of others, or to an agent that asks for it. The seat names the owner, and
// that is on record before anybody hears of it. An agent is told which places it has (Places)
// whenever its own table says otherwise.
#pragma once

#include "core/controller/job.h"
#include "core/controller/membership.h"

namespace holdfast::controller {

class Owners {
 public:
  Owners(Job& job, Membership& membership) : job_(job), membership_(membership) {}

  // Grants the agent the places that it asks for and that nobody else has, and applies its word on
  // its places. `former`: its word before, of which only changes are applied.
  void take_up(Link link, const std::map<std::string, PlaceWord>& former);
  // If some place may have lost its owner, grants it to an agent that asks for it.
  void answer_askers();
  void set_changed() { have_changed_ = true; }  // An owner is silent, or gone.
  void answer_askers_in_time();
  [[nodiscard]] std::optional<Instant> deadline() const;  // When answer_askers_in_time() is due.
  void tell_who_has_them(Link link);

  // The agent's host counts as lost, so its places are free; or it lives after all, and has them
  // back.
  void free_places(const Agent& lost);
  void take_back(const std::string& agent_id);
  // Gives the places of lost hosts to hosts that would take them. The places of one host stay
  // together.
  void assign_free_places();
  // Tells all agents for which of these lost ranks nobody takes the places.
  void tell_not_taken(const std::set<Rank>& ranks);

  // Gives the places of these ranks to the agent `heir`, on record before anybody hears of it.
  void hand_over(const std::set<Rank>& ranks, Link heir);
  void tell_owners();
  // Places that the agent owns and that its table lacks.
  [[nodiscard]] std::vector<std::string> lacking(const Agent& agent) const;
  [[nodiscard]] bool is_drained(const std::string& agent_id) const;
  // Whether the agent would take this many places more; and which agent would best (0: none).
  [[nodiscard]] bool takes(const Agent& agent, std::size_t places) const;
  [[nodiscard]] Link host_for(std::size_t places, const std::string& not_on,
                              const std::string& only_on) const;

 private:
  // Whether an agent may have a place that it asks for.
  enum class Right : std::uint8_t {
    kIts,     // The place is the agent's, from now on if it was not before.
    kNotYet,  // Another agent has it, which may get lost: the asker waits.
    kLost,    // It was granted to another agent since: the asker drops it.
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
  bool have_changed_ = false;  // Owners have changed since the askers were answered.
  Instant askers_next_{};      // Before the ranks are given: when askers are answered again.
  // Processes that have lost their places and are to be told.
  std::vector<std::pair<Link, Rank>> retired_;
  std::map<std::string, std::string> lost_;  // Hosts whose places are free, by agent id.
};

}  // namespace holdfast::controller
