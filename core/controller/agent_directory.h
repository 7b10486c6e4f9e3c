// The agents: which are here (connected) or missed, which one speaks for which place, and which ask
// for the places of others.
//
// What an agent says of its places (its word) can be looked up by agent and by place. Only this
// class changes it, so the two always agree.
#pragma once

#include <set>
#include <utility>

#include "base/ids.h"
#include "core/controller/key_values.h"
#include "wire/messages.h"

namespace holdfast::controller {

// An agent that is here or missed.
struct Agent {
  std::string agent_id;
  std::string host;
  std::set<std::string> nodes;  // Its own places, as far as its table has them.
  // Places in its table that another agent has, which may be lost.
  std::vector<wire::PlaceState> asks;
  bool has_others = false;  // Its table also has places that it has lost for good.
  std::uint32_t takes = 0;  // As in wire::AgentState, as are the next three.
  std::vector<wire::SpareState> spares;
  std::vector<wire::RehearsalState> rehearsals;
  std::vector<wire::StandingState> standing;
  bool is_told = false;       // false: its first table has not come yet.
  std::uint64_t remarks = 0;  // How many of the job's remarks it has been sent.
  Instant heard{};
  Duration gap{};                   // Longest time between two messages; old ones count ever less.
  std::optional<Instant> called{};  // When its silence was noticed: its last call began then.
  bool is_silent = false;           // Its host counts as lost.
  bool has_hung_up = false;         // It was connected, and its connection has ended.
  Duration asks_every{};            // Once all its processes have hung up: time between two Probes,
  Instant asks_at{};                // and when the next one is due.
  bool beats = false;               // It sends heartbeats, so its silence means something.
  std::uint64_t book = 0;           // Name of the address book that it has; 0: none.
};

// The state of a place, by the word of the one agent that speaks for it.
struct PlaceWord {
  Link link = 0;
  wire::PlaceState place;
};

class AgentDirectory {
 public:
  // The agents that are here, by connection.
  [[nodiscard]] const std::map<Link, Agent>& here() const { return here_; }
  [[nodiscard]] std::map<Link, Agent>& here() { return here_; }
  [[nodiscard]] Agent* find(Link link);  // Null: no agent is at this link.
  [[nodiscard]] Agent& at(Link link) { return here_.at(link); }
  [[nodiscard]] Link link_of(const std::string& agent_id) const;  // 0: the agent is not here.
  // The agent is here from now on, and is no longer missed.
  Agent& enter(Link link, const std::string& agent_id);
  [[nodiscard]] std::optional<Agent> remove(Link link);

  // Agents whose connections have ended and that are not back yet.
  [[nodiscard]] std::vector<Agent>& missing() { return missing_; }
  // Whether this agent is missed, and is on another host than `not_from`. Then its word comes
  // first: the scheduler was started again, or the agent's connection has ended just now.
  [[nodiscard]] bool is_awaited(const std::string& agent_id, const std::string& not_from) const;

  [[nodiscard]] const std::map<std::string, PlaceWord>& words() const { return words_; }
  [[nodiscard]] const PlaceWord* word_on(const std::string& node_id) const;
  [[nodiscard]] const Agent* speaker(const std::string& node_id) const;
  // Whether the agent that speaks for the place has given it to this process. Always true for a
  // process that no agent has started.
  [[nodiscard]] bool is_given(const wire::Register& m) const;
  // From now on this agent speaks for the place. Returns whether another one did until now.
  bool take_word(Link link, const wire::PlaceState& place);
  // Nobody speaks for this place any more. The agent that did is to be told which places it still
  // has.
  void forget_word(const std::string& node_id);
  // Removes and returns all that this agent has said of its places: it speaks for none from now on.
  [[nodiscard]] std::map<std::string, PlaceWord> take_words(Link link);

  void set_asks(Link link, std::vector<wire::PlaceState> asks);
  [[nodiscard]] const std::set<Link>& askers() const { return askers_; }

  // This agent is to be told which places it has, if its table says otherwise.
  void set_untold(Link link) { untold_.insert(link); }
  [[nodiscard]] std::set<Link> take_untold() { return std::exchange(untold_, {}); }

  // The agent's host counts as lost.
  void set_silent(Agent& agent) {
    agent.is_silent = true;
    if (const Link link = link_of(agent.agent_id); link != 0) silenced_.insert(link);
  }
  [[nodiscard]] std::set<Link> take_silenced() { return std::exchange(silenced_, {}); }

 private:
  void forget_link(const std::string& agent_id, Link link);

  std::map<Link, Agent> here_;
  std::map<std::string, Link> links_;  // By agent_id.
  std::vector<Agent> missing_;
  std::map<std::string, PlaceWord> words_;  // By node id.
  std::set<Link> askers_;                   // Agents whose `asks` are not empty.
  std::set<Link> untold_;
  std::set<Link> silenced_;
};

}  // namespace holdfast::controller
