// Hosts: which of them are lost. A host is silent together: its agent and all its workers. Where
// one of these speaks, the host lives, and a process that has died there is its agent's to tell of.
#include <algorithm>
#include <utility>

#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Stage;

namespace {

// An agent counts as silent after so many of its own longest gaps: on a busy host they are long.
constexpr int kGaps = 4;
// The silence has a last call of this part of it: what was said before is heard within that (P10).
constexpr int kLastCall = 4;
// A scheduler that was started again hears of every host again within so long, if the host lives:
// its processes try to connect at least once a second.
constexpr Duration kReturn = std::chrono::seconds(3);

}  // namespace

bool share_a_node(const std::vector<std::string>& some, const std::vector<std::string>& others) {
  return std::find_first_of(some.begin(), some.end(), others.begin(), others.end()) != some.end();
}

// On one host, what there is to know of a death is known at once.
bool Machine::watches_hosts() const {
  return options_.host_silence > Duration{} && memories_.size() > 1 && assembled() &&
         formation_.stage != Stage::kEnded;
}

void Machine::hear_agent(Agent& agent) {
  if (agent.heard != Instant{}) agent.gap = std::max(now_ - agent.heard, agent.gap / 8 * 7);
  agent.heard = now_;
  agent.called.reset();
  // It is back before anybody else has its places.
  if (std::exchange(agent.is_silent, false)) has_home(agent.nodes, /*given=*/false);
}

// Somebody speaks for these places: of those that are lost they are struck out, but not where they
// were given to somebody, unless this is the one (`given`).
void Machine::has_home(const std::vector<std::string>& nodes, bool given) {
  for (Homeless& lost : homeless_) {
    if (lost.given_to != 0 && !given) continue;
    std::erase_if(lost.nodes,
                  [&](const std::string& node_id) { return share_a_node(nodes, {node_id}); });
  }
  std::erase_if(homeless_, [](const Homeless& lost) { return lost.nodes.empty(); });
}

Duration Machine::silence_of(const Agent& agent) const {
  const Duration longest = std::max(options_.host_silence, options_.lease);
  return std::clamp<Duration>(kGaps * agent.gap, options_.host_silence, longest);
}

// Its connection has ended. It may come back, as after a fault of the network; else its host is
// lost, or it has died and takes its processes along.
void Machine::miss_agent(Agent agent) {
  if (!watches_hosts()) return;
  agent.heard = now_;
  agent.gap = {};
  agent.called.reset();
  missing_.push_back(std::move(agent));
  look_at_hosts(now_ + options_.host_silence);
}

// This scheduler takes over: of no host it has heard yet. Each has an agent that is to come back.
void Machine::miss_all_agents() {
  if (!watches_hosts()) return;
  std::map<std::string, Agent> agents;  // By memory.
  for (const Member& member : each()) {
    if (member.seat.attempt == 0) continue;  // It was started by hand.
    Agent& agent = agents[member.seat.memory];
    agent.host = member.seat.host;
    agent.nodes.push_back(member.seat.node_id);
  }
  for (auto& [memory, agent] : agents) {
    agent.heard = now_;
    agent.gap = kReturn / kGaps;
    missing_.push_back(std::move(agent));
  }
  look_at_hosts(now_ + kReturn);
}

// Whether another host that has this place is to speak first: this scheduler has been started
// again, or that host's connection has ended just now.
bool Machine::is_awaited(const std::string& node_id, const std::string& not_from) const {
  return std::any_of(missing_.begin(), missing_.end(), [&](const Agent& missed) {
    return missed.host != not_from && share_a_node(missed.nodes, {node_id});
  });
}

// It is back, or another one has its places.
void Machine::stop_missing(const Agent& agent) {
  std::erase_if(missing_,
                [&](const Agent& missed) { return share_a_node(missed.nodes, agent.nodes); });
}

void Machine::look_at_hosts(Instant when) {
  hosts_look_at_ = hosts_look_at_ ? std::min(*hosts_look_at_, when) : when;
}

void Machine::check_hosts() {
  if (!watches_hosts() || !hosts_look_at_ || now_ < *hosts_look_at_) return;
  hosts_look_at_.reset();
  std::set<Rank> lost;
  for (auto& [link, agent] : agents_) check_host(agent, lost);
  for (Agent& agent : missing_) check_host(agent, lost);
  std::erase_if(missing_, [](const Agent& agent) { return agent.is_silent; });
  for (const Rank rank : lost) {
    if (lease_runs(at(rank))) lose(at(rank));
  }
  if (!lost.empty()) admit_rivals();
  house();
}

// The agent on this link is here.
void Machine::refuse_rivals(Link link) {
  const Agent& agent = agents_.at(link);
  const auto rivals = std::exchange(rivals_, {});
  for (const auto& [rival, m] : rivals) {
    const auto place = std::find_if(m.places.begin(), m.places.end(), [&](const auto& claimed) {
      const auto word = place_words_.find(claimed.node_id);
      return word != place_words_.end() && word->second.link == link;
    });
    if (place == m.places.end()) {
      rivals_.emplace(rival, m);
    } else {
      reject(rival, not_its_place(place->node_id, agent));
    }
  }
}

// Some host is lost, so its places may be claimed.
void Machine::admit_rivals() {
  for (const auto& [rival, m] : std::exchange(rivals_, {})) receive(rival, m);
}

// Its host is this scheduler's, which is not lost while this one runs: its leases tell of the rest.
bool Machine::is_here(const Agent& agent) const {
  if (options_.own_agent.empty()) return false;
  // Of a host that is to come back, nobody has said yet who its agent is.
  return agent.agent_id.empty() ? agent.host == options_.own_host : is_own_agent(agent.agent_id);
}

void Machine::check_host(Agent& agent, std::set<Rank>& lost) {
  if (agent.is_silent || is_here(agent)) return;
  const Duration silence = silence_of(agent);
  if (now_ < agent.heard + silence) return look_at_hosts(agent.heard + silence);
  std::set<Rank> ranks;
  Instant spoke = agent.heard;
  for (const auto& node_id : agent.nodes) {
    const Rank rank = rank_of(node_id);
    if (rank == kNoRank) continue;
    spoke = std::max(spoke, at(rank).heard);
    ranks.insert(rank);
  }
  // What its processes said after its own last beat shows that the host lives.
  if (spoke > agent.heard + std::min(agent.gap, options_.host_silence)) {
    agent.heard = spoke;
    agent.called.reset();
    if (now_ < spoke + silence) return look_at_hosts(spoke + silence);
  }
  if (!agent.called) agent.called = now_;
  const Instant end = *agent.called + silence / kLastCall;
  if (now_ < end) return look_at_hosts(end);
  agent.is_silent = true;
  Homeless homeless{.nodes = {}};
  for (const Rank rank : ranks) {
    // Also one whose process was lost before: nobody else would start its successor.
    if (!at(rank).seat.finished) homeless.nodes.push_back(at(rank).seat.node_id);
  }
  if (!homeless.nodes.empty()) homeless_.push_back(std::move(homeless));
  lost.merge(ranks);
}

// The places of lost hosts go to a host that would take them. The least loaded does: a spare host
// before all others.
void Machine::house() {
  for (Homeless& lost : homeless_) {
    if (lost.given_to != 0) continue;
    lost.given_to = host_for(lost.nodes.size());
    if (lost.given_to == 0) continue;
    for (const auto& node_id : lost.nodes) give_away(node_id);
    send(lost.given_to, wire::Give{lost.nodes});
  }
}

Link Machine::host_for(std::size_t places) const {
  Link best = 0;
  std::size_t least = 0;
  for (const auto& entry : agents_) {
    const Agent& agent = entry.second;
    const bool has_more =
        std::any_of(homeless_.begin(), homeless_.end(),
                    [&](const Homeless& lost) { return lost.given_to == entry.first; });
    if (agent.is_silent || has_more || agent.takes < places) continue;
    if (best != 0 && agent.nodes.size() >= least) continue;
    best = entry.first;
    least = agent.nodes.size();
  }
  return best;
}

// Whoever had the place has lost it for good, even if it lives: it hears so when it speaks.
void Machine::give_away(const std::string& node_id) {
  Member& member = at(rank_of(node_id));
  if (const auto word = place_words_.find(node_id); word != place_words_.end()) {
    dismiss(word->second.link);
  }
  if (member.state != SeatState::kSilent) return;
  if (member.link != 0) {
    refuse(member.link, {.kind = wire::Reason::Kind::kNewerProcess, .rank = member.rank});
  }
  detach(member);
  advance(member, SeatEvent::kDied);
}

// Whom the place of a lost host was given to, if it has not claimed it yet.
std::optional<Link> Machine::given_to(const std::string& node_id) const {
  for (const Homeless& lost : homeless_) {
    if (lost.given_to != 0 && share_a_node(lost.nodes, {node_id})) return lost.given_to;
  }
  return std::nullopt;
}

}  // namespace holdfast::controller
