// Agents as processes: each drives its machine, starts workers, spares and perhaps the scheduler,
// and learns of their deaths.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "sim/words.h"
#include "sim/world.h"

namespace holdfast::sim {

namespace {

constexpr Duration kRehearsalInterval = std::chrono::milliseconds(20);
constexpr Duration kGrace = std::chrono::seconds(3);
constexpr Duration kStoppedBound = std::chrono::milliseconds(1500);
constexpr agent::Process kNumbers = 100'000;  // More than the processes of one agent.

// Each agent numbers its processes from 1. In the world, all processes have different numbers.
agent::Process global(std::size_t agent, agent::Process local) {
  return local + agent * kNumbers;
}
agent::Process local(agent::Process global) {
  return global % kNumbers;
}

}  // namespace

void World::start_agents() {
  const auto count = static_cast<Index>(setup_.agents + (setup_.spare_host ? 1 : 0));
  for (Index i = 0; i < count; ++i)
    agents_.emplace_back(options_of(i, i)).gives_up_at = now_ + kAlonePatience;
  for (Index i = 0; i < count; ++i) tell_agent(i, agent::Started{});
}

// The options of agent `i`, with the places of host `of`. Ranks are dealt out to hosts in turn.
agent::Options World::options_of(Index i, Index of) const {
  const bool is_spare = of == static_cast<Index>(setup_.agents);
  const auto each = static_cast<std::int32_t>(setup_.ranks / setup_.agents);
  agent::Options options;
  options.job = "job";
  options.agent_id = cat("agent-", i);
  options.host = setup_.hosts ? cat("host-", i) : "host";
  for (auto rank = static_cast<Rank>(of); !is_spare && rank < setup_.ranks; rank += setup_.agents) {
    options.workers.push_back(cat("w", rank));
  }
  if (is_spare) {
    options.spare_host = true;
    options.takes = each;
  }
  if (setup_.oversubscribe && !is_spare) options.takes = setup_.ranks - each;
  options.world_size = setup_.ranks;
  options.seed = i + 1;
  options.runs_scheduler = i == 0;
  options.spares = is_spare ? each : setup_.spares;
  options.bound_spares = setup_.bound_spares;
  options.max_restarts = setup_.max_restarts;
  options.rehearsals.on = setup_.rehearsals;
  options.rehearsals.interval = kRehearsalInterval;
  return options;
}

// Starts the command of a lost host again, on another host. The loss may not be known yet.
void World::start_again(Index lost) {
  if (!agents_[0].runs()) return;  // The job is over.
  if (!setup_.restarts || agents_.size() > static_cast<Index>(setup_.agents) + 1) return;
  if (!setup_.spare_host && agents_.size() > static_cast<Index>(setup_.agents)) return;
  constexpr std::array kAfter = {Duration{}, Duration{200'000'000}, Duration{2'000'000'000}};
  const Index i = agents_.size();
  AgentProcess& agent = agents_.emplace_back(options_of(i, lost));
  agent.connects_at = now_ + kAfter[choices_.pick(kAfter.size())];
  agent.gives_up_at = now_ + kAlonePatience;
  tell_agent(i, agent::Started{});
}

bool World::agents_have_exited() const {
  return std::none_of(agents_.begin(), agents_.end(),
                      [](const AgentProcess& agent) { return agent.runs(); }) &&
         std::none_of(workers_.begin(), workers_.end(),  // Workers of an agent that was killed.
                      [](const Worker& worker) { return worker.alive && worker.signal == 9; });
}

World::Index World::agent_of(agent::Process process) const {
  return static_cast<Index>(process / kNumbers);
}

void World::list_agents() {
  for (Index a = 0; a < agents_.size(); ++a) {
    const AgentProcess& agent = agents_[a];
    if (!agent.runs()) continue;
    const auto add = [&](bool condition, Kind kind, Index index) {
      if (condition) possible_.push_back({kind, index, a});
    };
    const bool serves = scheduler_.machine.has_value();
    add(serves && agent.link == kNone && std::max(agent.connects_at, agent.away_until) <= now_,
        Kind::kAgentConnect, 0);
    for (Index i = 0; i < agent.promotions.size(); ++i) add(true, Kind::kPromote, i);
    for (Index i = 0; i < agent.deaths.size(); ++i) {
      const auto same = [&](const agent::Died& d) { return d.process == agent.deaths[i].process; };
      const auto before = agent.deaths.begin() + static_cast<std::ptrdiff_t>(i);
      add(std::none_of(agent.deaths.begin(), before, same), Kind::kDied, i);
    }
    add(!agent.not_spawned.empty(), Kind::kSpawnFailed, 0);
    add(agent.next_look && *agent.next_look <= now_, Kind::kLook, 0);
    for (Index i = 0; i < agent.pauses.size(); ++i) {
      add(agent.pauses[i].until <= now_, Kind::kPauseOver, i);
    }
    for (Index i = 0; i < agent.graces.size(); ++i) add(agent.graces[i] <= now_, Kind::kGrace, i);
    add(agent.link == kNone && agent.gives_up_at <= now_, Kind::kAgentAlone, 0);
    for (Index i = 0; i < agent.rehearsals.size(); ++i) add(true, Kind::kRehearsalEnds, i);
  }
}

void World::perform_for_agent(const Transition& t) {
  AgentProcess& agent = agents_[t.agent];
  switch (t.kind) {
    case Kind::kAgentConnect:
      agent.link = connect(kNone, t.agent);
      tell_agent(t.agent, agent::LinkUp{});
      return tell_of_spares(t.agent);
    case Kind::kPromote:
      return promote(t.agent, t.index);
    case Kind::kDied: {
      const agent::Died died = take(agent.deaths, t.index);
      agent.knows_end = agent.knows_end || died.job_ended;
      const auto& places = agent.machine.places();
      const bool had_rank = std::any_of(places.begin(), places.end(), [&](const auto& place) {
        return place.role == agent::Role::kWorker && place.process == died.process;
      });
      tell_agent(t.agent, died);
      if (had_rank && !agents_[t.agent].rehearsals.empty()) {
        checkers_.violate("P56: a rehearsal goes on though a rank of its host has died");
      }
      return;
    }
    case Kind::kRehearsalEnds: {
      constexpr std::array kVerdicts = {"equal\n1\n\n", "again\n1\n\n", "differs\n1\nw\n", ""};
      agent::Died died{.process = take(agent.rehearsals, t.index),
                       .ending = {wire::Ending::Kind::kExited, 0},
                       .detected_ns = 1};
      died.verdict = kVerdicts[choices_.pick(kVerdicts.size())];
      agent.deaths.push_back(std::move(died));
      return;
    }
    case Kind::kSpawnFailed: {
      const agent::Process process = agent.not_spawned.front();
      agent.not_spawned.pop_front();
      return tell_agent(t.agent, agent::SpawnFailed{process, "no memory for another process"});
    }
    case Kind::kLook:
      return look(t.agent);
    case Kind::kPauseOver:
      tell_of_spares(t.agent);
      return tell_agent(t.agent, agent::PauseOver{take(agent.pauses, t.index).pause});
    case Kind::kAgentAlone:
      agent.gives_up_at = now_ + kAlonePatience;
      return tell_agent(t.agent, agent::OutOfReach{"no scheduler"});
    case Kind::kGrace:
      (void)take(agent.graces, t.index);
      return tell_agent(t.agent, agent::GraceOver{});
    default:
      return;
  }
}

void World::tell_agent(Index agent, const agent::Event& event) {
  for (const auto& action : agents_[agent].machine.step(event)) carry_out(agent, action);
}

// Tells the agent which of its spares are ready: those that wait. It may be told again.
void World::tell_of_spares(Index agent) {
  std::vector<agent::Process> waiting;
  for (const Worker& worker : workers_) {
    const bool waits = worker.alive && worker.agent == agent && worker.program == Program::kSpare;
    if (waits) waiting.push_back(worker.process);
  }
  for (const auto process : waiting) tell_agent(agent, agent::SpareReady{local(process)});
}

World::Index World::worker_of(agent::Process process) const {
  for (Index i = 0; i < workers_.size(); ++i) {
    if (workers_[i].process == process) return i;
  }
  return kNone;
}

void World::carry_out(Index index, const agent::Action& action) {
  AgentProcess& agent = agents_[index];
  if (log_) tell(cat("    agent ", index, ": ", to_words(action)));
  fold(action.index());
  if (const auto* spawned = std::get_if<agent::Spawn>(&action)) {
    spawn(index, *spawned);
  } else if (const auto* promotion = std::get_if<agent::Promote>(&action)) {
    agent.promotions.push_back(*promotion);
  } else if (const auto* send = std::get_if<agent::Send>(&action)) {
    if (agent.link != kNone) send_up(agent.link, send->message);
  } else if (const auto* kill = std::get_if<agent::Kill>(&action)) {
    kill_child(index, *kill);
  } else if (const auto* pause = std::get_if<agent::WantPause>(&action)) {
    agent.pauses.push_back({now_ + pause->how_long, pause->pause});
  } else if (const auto* left = std::get_if<agent::LeaveAddresses>(&action)) {
    agent.addresses = left->addresses;
  } else if (std::holds_alternative<agent::WantGrace>(action)) {
    agent.graces.push_back(now_ + kGrace);
  } else if (const auto* exit = std::get_if<agent::Exit>(&action)) {
    agent.exited = *exit;
    check_exit(index);
    if (agent.link != kNone) client_is_gone(agent.link, false);
    agent.link = kNone;
  }
}

// Checks that an agent does not exit too early. The first agent may: its scheduler has told all
// processes of the end, or ends with it. Any other agent must have heard the job's end, or have
// told the scheduler of its own failure, while a scheduler is in reach.
void World::check_exit(Index index) {
  const AgentProcess& agent = agents_[index];
  const auto& places = agent.machine.places();
  const bool has_ended = durable_ && durable_->stage == wire::Stage::kEnded;
  if (agent.exited->drained || agent.is_hurried) return;
  if (agent.exited->code == 0 && has_ended && !durable_->success && agents_[0].runs()) {
    checkers_.violate("P14: an agent exits with code 0 though the job has failed");
  }
  if (index == 0 || has_ended || !agents_[0].runs()) return;
  if (agent.exited->reason.kind == wire::Reason::Kind::kOutOfReach) return;
  constexpr std::uint32_t kSilences =
      bit(Fault::kStall) | bit(Fault::kStopScheduler) | bit(Fault::kCutHost) | bit(Fault::kHiccup);
  if (agent.exited->code == 0) {
    checkers_.violate("P14: an agent leaves while the job goes on");
  } else if (!places.empty() && (struck_ & kSilences) == 0) {
    checkers_.violate("P14: an agent leaves with a failure of which no scheduler has heard");
  }
}

void World::kill_child(Index agent, const agent::Kill& kill) {
  const std::int32_t signal = kill.gently ? 15 : 9;
  const agent::Process process = global(agent, kill.process);
  if (const Index i = worker_of(process); i != kNone) {
    if (workers_[i].signal != 9) workers_[i].signal = signal;
  } else if (process == scheduler_.process && scheduler_.machine) {
    if (scheduler_.signal != 9) scheduler_.signal = signal;
  } else if (process == scheduler_.process && scheduler_.starting) {
    scheduler_.starting = false;
    agent_hears_of_death(agent, scheduler_.process, 128 + signal, false);
  } else if (std::erase(agents_[agent].rehearsals, kill.process) != 0) {
    agent_hears_of_death(agent, process, 128 + signal, false);
  }
}

void World::spawn(Index agent, const agent::Spawn& what) {
  if (agents_[agent].knows_end) {
    checkers_.violate("P26: a process is started for a job of which its agent knows the end");
  }
  if (spawns_fail_ > 0) {
    --spawns_fail_;
    agents_[agent].not_spawned.push_back(what.process);
  } else if (what.role == agent::Role::kScheduler) {
    scheduler_.process = global(agent, what.process);
    scheduler_.starting = true;
  } else if (what.role == agent::Role::kRehearsal) {
    agents_[agent].rehearsals.push_back(what.process);
  } else {
    add_worker(global(agent, what.process), what.node_id, what.incarnation, what.attempt,
               what.role == agent::Role::kSpare, agent);
  }
}

// When an agent dies its processes end, too, because they watch it.
void World::kill_agent(Index index) {
  AgentProcess& agent = agents_[index];
  agent.alive = false;
  agent.rehearsals.clear();
  if (agent.link != kNone) client_is_gone(agent.link, choices_.pick(2) == 0);
  agent.link = kNone;
  for (auto& worker : workers_) {
    if (worker.alive && worker.agent == index) worker.signal = 9;
  }
}

void World::stop(Worker& worker) {
  if (!worker.stopped) worker.stopped = now_;  // If stopped again at once, nobody saw it running.
  if (worker.agent != kNone) begin_looking(worker.agent);
}

void World::stop_scheduler() {
  if (!scheduler_.stopped) scheduler_.stopped = now_;
  if (!agents_.empty()) begin_looking(0);
}

void World::begin_looking(Index index) {
  AgentProcess& agent = agents_[index];
  if (agent.next_look) return;
  agent.last_look = now_;
  agent.next_look = now_ + agent::kLookEvery;
}

// The agent looks for stopped processes. The world skips these looks while there is none.
void World::look(Index index) {
  AgentProcess& agent = agents_[index];
  agent::Looked seen{.stopped = {}, .on_time = now_ <= agent.last_look + 2 * agent::kLookEvery};
  std::set<Index> signalled;
  for (Index i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.signal != 0) signalled.insert(i);
    if (worker.agent != index) continue;
    if (worker.paused_until <= now_) worker.stopped.reset();
    if (worker.alive && worker.stopped) seen.stopped.insert(local(worker.process));
  }
  if (scheduler_.paused_until <= now_ || !scheduler_.machine) scheduler_.stopped.reset();
  if (index == 0 && scheduler_.stopped) seen.stopped.insert(local(scheduler_.process));
  agent.last_look = now_;
  agent.next_look = now_ + agent::kLookEvery;
  tell_agent(index, seen);
  if (seen.stopped.empty()) agents_[index].next_look.reset();
  for (Index i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.signal == 0 || signalled.contains(i)) continue;
    const Instant since = std::max(worker.stopped.value_or(now_), agents_[index].stood_still);
    if (now_ < since + (agent::kStoppedLooks - 1) * agent::kLookEvery) {
      checkers_.violate("L5: an agent ended a process that had hardly been stopped");
    }
  }
}

void World::check_stopped_are_ended() {
  const auto too_long = [&](const std::optional<Instant>& stopped, Instant until, Index agent) {
    return stopped && until > now_ &&
           now_ > std::max(*stopped, agents_[agent].stood_still) + kStoppedBound;
  };
  const bool watched = !agents_.empty() && agents_[0].runs() && scheduler_.machine;
  if (watched && too_long(scheduler_.stopped, scheduler_.paused_until, 0)) {
    checkers_.violate("L5: nobody ended a scheduler that is stopped");
  }
  for (const Worker& worker : workers_) {
    if (!worker.alive || worker.agent == kNone || !agents_[worker.agent].runs()) continue;
    if (too_long(worker.stopped, worker.paused_until, worker.agent)) {
      checkers_.violate("L5: nobody ended a process that is stopped");
    }
  }
}

void World::agent_hears_of_death(Index agent, agent::Process process, std::int32_t code,
                                 bool lifeline, std::optional<bool> job_ended) {
  using End = wire::Ending::Kind;
  if (!agents_[agent].alive) return;
  auto& deaths = agents_[agent].deaths;
  const agent::Process known = local(process);
  if (lifeline) deaths.push_back({.process = known, .detected_ns = 1, .job_ended = job_ended});
  const bool signalled = code > 128;
  deaths.push_back(
      {.process = known,
       .ending = {signalled ? End::kSignalled : End::kExited, signalled ? code - 128 : code},
       .detected_ns = 1,
       .job_ended = job_ended});
}

void World::promote(Index agent, Index which) {
  const agent::Promote promotion = take(agents_[agent].promotions, which);
  const Index i = worker_of(global(agent, promotion.process));
  if (i == kNone || !workers_[i].alive) return;  // The spare has died meanwhile.
  // A bound spare has prepared for its own place from its start.
  if (setup_.bound_spares && workers_[i].node_id != promotion.node_id) {
    checkers_.violate("a spare was given another place than its own");
  }
  workers_[i].node_id = promotion.node_id;
  workers_[i].attempt = promotion.attempt;
  place(workers_[i]);
}

}  // namespace holdfast::sim
