// The agents: who is here or missed, who speaks for which place, and who asks for the places of
// others. What one of them says is looked up both ways, by the agent and by the place; only this
// class changes it, so the two agree.
#pragma once

#include <set>
#include <utility>

#include "base/ids.h"
#include "core/controller/key_values.h"
#include "wire/messages.h"

namespace holdfast::controller {

// An agent that is here, or that is missed.
struct Agent {
  std::string agent_id;
  std::string host;
  std::set<std::string> nodes;         // Of its places that its table has.
  std::vector<wire::PlaceState> asks;  // The places in it that are another one's, who may be lost.
  bool has_others = false;             // It has places as well that it has lost for good.
  std::uint32_t takes = 0;             // As of wire::AgentState, as is the next.
  std::vector<wire::SpareState> spares;
  std::vector<wire::RehearsalState> rehearsals;
  bool is_told = false;  // Of progress, from the next on.
  Instant heard{};
  Duration gap{};                   // The longest between two words; old ones count ever less.
  std::optional<Instant> called{};  // When its silence was noticed: it has its last call.
  bool is_silent = false;           // Its host counts as lost.
  bool has_hung_up = false;         // It was here, and its connection has ended.
  Duration asks_every{};            // Whether its processes are there, once all have hung up,
  Instant asks_at{};                // and when next.
  bool beats = false;               // So its silence says something.
  std::uint64_t book = 0;           // The name of the address book that it has; 0: none.
};

// What the only agent that speaks for a place says of it.
struct PlaceWord {
  Link link = 0;
  wire::PlaceState place;
};

class AgentDirectory {
 public:
  // By connection.
  [[nodiscard]] const std::map<Link, Agent>& here() const { return here_; }
  [[nodiscard]] std::map<Link, Agent>& here() { return here_; }
  [[nodiscard]] Agent* find(Link link);  // Null: none is there.
  [[nodiscard]] Agent& at(Link link) { return here_.at(link); }
  [[nodiscard]] Link link_of(const std::string& agent_id) const;  // 0: it is not here.
  // It is here, and missed no more.
  Agent& enter(Link link, const std::string& agent_id);
  [[nodiscard]] std::optional<Agent> remove(Link link);

  // Their connections have ended, and they are not back yet.
  [[nodiscard]] std::vector<Agent>& missing() { return missing_; }
  // Whether an agent of another host is to speak first: this scheduler has been started again, or
  // that agent's connection has ended just now.
  [[nodiscard]] bool is_awaited(const std::string& agent_id, const std::string& not_from) const;

  [[nodiscard]] const std::map<std::string, PlaceWord>& words() const { return words_; }
  [[nodiscard]] const PlaceWord* word_on(const std::string& node_id) const;
  [[nodiscard]] const Agent* speaker(const std::string& node_id) const;
  // Whether the agent of its place says so. If no agent has started it, nobody need say so.
  [[nodiscard]] bool is_given(const wire::Register& m) const;
  // Whether another agent has spoken for the place until now.
  bool take_word(Link link, const wire::PlaceState& place);
  // Of whoever has spoken for this place. It hears which places it has still.
  void forget_word(const std::string& node_id);
  // All that it has said of its places. It speaks for none from now on.
  [[nodiscard]] std::map<std::string, PlaceWord> take_words(Link link);

  void set_asks(Link link, std::vector<wire::PlaceState> asks);
  [[nodiscard]] const std::set<Link>& askers() const { return askers_; }

  // Who is to hear which places it has, if it does not know.
  void set_untold(Link link) { untold_.insert(link); }
  [[nodiscard]] std::set<Link> take_untold() { return std::exchange(untold_, {}); }

 private:
  void forget_link(const std::string& agent_id, Link link);

  std::map<Link, Agent> here_;
  std::map<std::string, Link> links_;  // By agent_id.
  std::vector<Agent> missing_;
  std::map<std::string, PlaceWord> words_;  // By node id.
  std::set<Link> askers_;                   // Whose Agent::asks are not empty.
  std::set<Link> untold_;
};

}  // namespace holdfast::controller
