#include "core/controller/agent_directory.h"

#include <algorithm>

namespace holdfast::controller {

Agent* AgentDirectory::find(Link link) {
  const auto found = here_.find(link);
  return found == here_.end() ? nullptr : &found->second;
}

Link AgentDirectory::link_of(const std::string& agent_id) const {
  const auto found = links_.find(agent_id);
  return found == links_.end() ? 0 : found->second;
}

Agent& AgentDirectory::enter(Link link, const std::string& agent_id) {
  Agent& agent = here_[link];
  forget_link(agent.agent_id, link);
  links_[agent_id] = link;
  agent.agent_id = agent_id;
  std::erase_if(missing_, [&](const Agent& missed) { return missed.agent_id == agent_id; });
  return agent;
}

std::optional<Agent> AgentDirectory::remove(Link link) {
  auto agent = here_.extract(link);
  if (agent.empty()) return std::nullopt;
  forget_link(agent.mapped().agent_id, link);
  for (const auto& node_id : agent.mapped().nodes) words_.erase(node_id);
  askers_.erase(link);
  return std::move(agent.mapped());
}

// From now on this link is no longer the agent's.
void AgentDirectory::forget_link(const std::string& agent_id, Link link) {
  const auto here = links_.find(agent_id);
  if (here != links_.end() && here->second == link) links_.erase(here);
}

bool AgentDirectory::is_awaited(const std::string& agent_id, const std::string& not_from) const {
  return std::any_of(missing_.begin(), missing_.end(), [&](const Agent& missed) {
    return missed.host != not_from && missed.agent_id == agent_id;
  });
}

const PlaceWord* AgentDirectory::word_on(const std::string& node_id) const {
  const auto word = words_.find(node_id);
  return word == words_.end() ? nullptr : &word->second;
}

const Agent* AgentDirectory::speaker(const std::string& node_id) const {
  const PlaceWord* word = word_on(node_id);
  return word == nullptr ? nullptr : &here_.at(word->link);
}

bool AgentDirectory::is_given(const wire::Register& m) const {
  if (m.attempt == 0) return true;
  const PlaceWord* word = word_on(m.node_id);
  return word != nullptr && word->place.attempt == m.attempt &&
         word->place.incarnation == m.incarnation;
}

bool AgentDirectory::take_word(Link link, const wire::PlaceState& place) {
  const PlaceWord* word = word_on(place.node_id);
  const bool was_anothers = word != nullptr && word->link != link;
  if (was_anothers) forget_word(place.node_id);
  here_.at(link).nodes.insert(place.node_id);
  words_[place.node_id] = {link, place};
  return was_anothers;
}

void AgentDirectory::forget_word(const std::string& node_id) {
  const auto word = words_.extract(node_id);
  if (word.empty()) return;
  Agent& agent = here_.at(word.mapped().link);
  agent.nodes.erase(node_id);
  agent.has_others = true;
  untold_.insert(word.mapped().link);
}

std::map<std::string, PlaceWord> AgentDirectory::take_words(Link link) {
  std::map<std::string, PlaceWord> former;
  for (const auto& node_id : std::exchange(here_.at(link).nodes, {})) {
    former.insert(words_.extract(node_id));
  }
  return former;
}

void AgentDirectory::set_asks(Link link, std::vector<wire::PlaceState> asks) {
  asks.empty() ? (void)askers_.erase(link) : (void)askers_.insert(link);
  here_.at(link).asks = std::move(asks);
}

}  // namespace holdfast::controller
