#include "sim/agent.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "sim/words.h"

namespace holdfast::sim {
namespace {

constexpr Duration kRehearsalInterval = std::chrono::milliseconds(20);
constexpr Duration kGrace = std::chrono::seconds(3);
constexpr Duration kStoppedBound = std::chrono::milliseconds(1500);

using Kind = Transition::Kind;

}  // namespace

void Agents::start() {
  const auto count = static_cast<Index>(job_.setup.agents + (job_.setup.spare_host ? 1 : 0));
  for (Index i = 0; i < count; ++i) {
    job_.agents.emplace_back(options_of(i, i)).gives_up_at = job_.now + kAlonePatience;
  }
  for (Index i = 0; i < count; ++i) tell(i, agent::Started{});
}

// The options of agent `i`, with the places of host `of`. Ranks are dealt out to hosts in turn.
agent::Options Agents::options_of(Index i, Index of) const {
  const bool is_spare = of == static_cast<Index>(job_.setup.agents);
  const auto each = static_cast<std::int32_t>(job_.setup.ranks / job_.setup.agents);
  agent::Options options;
  options.job = "job";
  options.agent_id = cat("agent-", i);
  options.host = job_.setup.hosts ? cat("host-", i) : "host";
  for (auto rank = static_cast<Rank>(of); !is_spare && rank < job_.setup.ranks;
       rank += job_.setup.agents) {
    options.workers.push_back(node_of(job_.setup, rank));
  }
  if (is_spare) {
    options.spare_host = true;
    options.takes = each;
  }
  if (job_.setup.oversubscribe && !is_spare) options.takes = job_.setup.ranks - each;
  options.world_size = job_.setup.ranks;
  options.servers = job_.setup.servers;
  options.seed = i + 1;
  options.runs_scheduler = i == 0;
  options.spares = is_spare ? each : job_.setup.spares;
  options.bound_spares = job_.setup.bound_spares;
  options.max_restarts = job_.setup.max_restarts;
  options.rehearsals.on = job_.setup.rehearsals;
  options.rehearsals.interval = kRehearsalInterval;
  return options;
}

// Starts the command of a lost host again, on another host. The loss may not be known yet.
void Agents::start_again(Index lost) {
  if (!job_.agents[0].runs()) return;  // The job is over.
  if (!job_.setup.restarts || job_.agents.size() > static_cast<Index>(job_.setup.agents) + 1) {
    return;
  }
  if (!job_.setup.spare_host && job_.agents.size() > static_cast<Index>(job_.setup.agents)) return;
  constexpr std::array kAfter = {Duration{}, Duration{200'000'000}, Duration{2'000'000'000}};
  const Index i = job_.agents.size();
  AgentProcess& agent = job_.agents.emplace_back(options_of(i, lost));
  agent.connects_at = job_.now + kAfter[job_.choices.pick(kAfter.size())];
  agent.gives_up_at = job_.now + kAlonePatience;
  tell(i, agent::Started{});
}

bool Agents::have_exited() const {
  const auto runs = [](const AgentProcess& agent) { return agent.runs(); };
  // The agent of such a worker was killed.
  const auto is_ending = [](const Worker& worker) { return worker.alive && worker.signal == 9; };
  return std::none_of(job_.agents.begin(), job_.agents.end(), runs) &&
         std::none_of(job_.workers.begin(), job_.workers.end(), is_ending);
}

void Agents::list(std::vector<Transition>& possible) const {
  for (Index a = 0; a < job_.agents.size(); ++a) {
    const AgentProcess& agent = job_.agents[a];
    if (!agent.runs()) continue;
    const auto add = [&](bool condition, Kind kind, Index index) {
      if (condition) possible.push_back({kind, index, a});
    };
    const bool serves = job_.scheduler.machine.has_value();
    add(serves && agent.link == kNone && std::max(agent.connects_at, agent.away_until) <= job_.now,
        Kind::kAgentConnect, 0);
    for (Index i = 0; i < agent.promotions.size(); ++i) add(true, Kind::kPromote, i);
    for (Index i = 0; i < agent.deaths.size(); ++i) {
      const auto same = [&](const agent::Died& d) { return d.process == agent.deaths[i].process; };
      const auto before = agent.deaths.begin() + static_cast<std::ptrdiff_t>(i);
      add(std::none_of(agent.deaths.begin(), before, same), Kind::kDied, i);
    }
    add(!agent.not_spawned.empty(), Kind::kSpawnFailed, 0);
    add(agent.next_look && *agent.next_look <= job_.now, Kind::kLook, 0);
    for (Index i = 0; i < agent.pauses.size(); ++i) {
      add(agent.pauses[i].until <= job_.now, Kind::kPauseOver, i);
    }
    for (Index i = 0; i < agent.graces.size(); ++i)
      add(agent.graces[i] <= job_.now, Kind::kGrace, i);
    add(agent.link == kNone && agent.gives_up_at <= job_.now, Kind::kAgentAlone, 0);
    for (Index i = 0; i < agent.rehearsals.size(); ++i) add(true, Kind::kRehearsalEnds, i);
  }
}

void Agents::perform(const Transition& t) {
  AgentProcess& agent = job_.agents[t.agent];
  switch (t.kind) {
    case Kind::kAgentConnect:
      agent.link = scheduler_.connect(kNone, t.agent);
      tell(t.agent, agent::LinkUp{});
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
      tell(t.agent, died);
      if (had_rank && !job_.agents[t.agent].rehearsals.empty()) {
        job_.checkers.violate("P56: a rehearsal goes on though a rank of its host has died");
      }
      return;
    }
    case Kind::kRehearsalEnds: {
      constexpr std::array kVerdicts = {"equal\n1\n\n", "again\n1\n\n", "differs\n1\nw\n", ""};
      agent::Died died{.process = take(agent.rehearsals, t.index),
                       .ending = {wire::Ending::Kind::kExited, 0},
                       .detected_ns = 1};
      died.verdict = kVerdicts[job_.choices.pick(kVerdicts.size())];
      agent.deaths.push_back(std::move(died));
      return;
    }
    case Kind::kSnapshotDone:
      return tell(t.agent, agent::SnapshotDone{writers_.end(t.agent)});
    case Kind::kSpawnFailed: {
      const agent::Process process = agent.not_spawned.front();
      agent.not_spawned.pop_front();
      return tell(t.agent, agent::SpawnFailed{process, "no memory for another process"});
    }
    case Kind::kLook:
      return look(t.agent);
    case Kind::kPauseOver:
      tell_of_spares(t.agent);
      return tell(t.agent, agent::PauseOver{take(agent.pauses, t.index).pause});
    case Kind::kAgentAlone:
      agent.gives_up_at = job_.now + kAlonePatience;
      return tell(t.agent, agent::OutOfReach{"no scheduler"});
    case Kind::kGrace:
      (void)take(agent.graces, t.index);
      return tell(t.agent, agent::GraceOver{});
    default:
      return;
  }
}

void Agents::tell(Index agent, const agent::Event& event) {
  for (const auto& action : job_.agents[agent].machine.step(event)) carry_out(agent, action);
}

// Tells the agent which of its spares are ready: those that wait. It may be told again.
void Agents::tell_of_spares(Index agent) {
  std::vector<agent::Process> waiting;
  for (const Worker& worker : job_.workers) {
    const bool waits = worker.alive && worker.agent == agent && worker.program == Program::kSpare;
    if (waits) waiting.push_back(worker.process);
  }
  for (const auto process : waiting) tell(agent, agent::SpareReady{number_at_agent(process)});
}

Index Agents::worker_of(agent::Process process) const {
  for (Index i = 0; i < job_.workers.size(); ++i) {
    if (job_.workers[i].process == process) return i;
  }
  return kNone;
}

void Agents::carry_out(Index index, const agent::Action& action) {
  AgentProcess& agent = job_.agents[index];
  if (job_.log.is_wanted()) job_.log.tell(cat("    agent ", index, ": ", to_words(action)));
  job_.log.fold(action.index());
  if (const auto* spawned = std::get_if<agent::Spawn>(&action)) {
    spawn(index, *spawned);
  } else if (const auto* promotion = std::get_if<agent::Promote>(&action)) {
    agent.promotions.push_back(*promotion);
  } else if (const auto* send = std::get_if<agent::Send>(&action)) {
    if (agent.link != kNone) connections_.send_up(agent.link, send->message);
  } else if (const auto* kill = std::get_if<agent::Kill>(&action)) {
    kill_child(index, *kill);
  } else if (const auto* pause = std::get_if<agent::WantPause>(&action)) {
    agent.pauses.push_back({job_.now + pause->how_long, pause->pause});
  } else if (const auto* left = std::get_if<agent::LeaveAddresses>(&action)) {
    agent.addresses = left->addresses;
  } else if (const auto* inspected = std::get_if<agent::Inspect>(&action)) {
    if (job_.choices.pick(2) == 0) tell(index, agent::Inspected{inspected->process, "it spins"});
  } else if (const auto* given = std::get_if<agent::DoSnapshot>(&action)) {
    if (const auto answer = writers_.begin(index, given->order)) {
      tell(index, agent::SnapshotDone{*answer});
    }
  } else if (std::holds_alternative<agent::WantGrace>(action)) {
    agent.graces.push_back(job_.now + kGrace);
  } else if (const auto* exit = std::get_if<agent::Exit>(&action)) {
    agent.exited = *exit;
    writers_.cut_short(index);
    check_exit(index);
    if (agent.link != kNone) connections_.client_is_gone(agent.link, false);
    agent.link = kNone;
  }
}

// Checks that an agent does not exit too early. The first agent may: its scheduler has told all
// processes of the end, or ends with it. Any other agent must have heard the job's end, or have
// told the scheduler of its own failure, while a scheduler is in reach.
void Agents::check_exit(Index index) {
  const AgentProcess& agent = job_.agents[index];
  const auto& places = agent.machine.places();
  const bool has_ended = journal_.has_ended();
  if (agent.exited->drained || agent.is_hurried) return;
  if (agent.exited->code == 0 && has_ended && !journal_.formation()->success &&
      job_.agents[0].runs()) {
    job_.checkers.violate("P14: an agent exits with code 0 though the job has failed");
  }
  if (index == 0 || has_ended || !job_.agents[0].runs()) return;
  if (agent.exited->reason.kind == wire::Reason::Kind::kOutOfReach) return;
  constexpr std::uint32_t kSilences =
      bit(Fault::kStall) | bit(Fault::kStopScheduler) | bit(Fault::kCutHost) | bit(Fault::kHiccup);
  if (agent.exited->code == 0) {
    job_.checkers.violate("P14: an agent leaves while the job goes on");
  } else if (!places.empty() && (job_.struck & kSilences) == 0) {
    job_.checkers.violate("P14: an agent leaves with a failure of which no scheduler has heard");
  }
}

void Agents::kill_child(Index agent, const agent::Kill& kill) {
  const std::int32_t signal = kill.gently ? 15 : 9;
  const agent::Process process = number_in_world(agent, kill.process);
  if (const Index i = worker_of(process); i != kNone) {
    if (job_.workers[i].signal != 9) job_.workers[i].signal = signal;
  } else if (process == job_.scheduler.process && job_.scheduler.machine) {
    if (job_.scheduler.signal != 9) job_.scheduler.signal = signal;
  } else if (process == job_.scheduler.process && job_.scheduler.starting) {
    job_.scheduler.starting = false;
    job_.agents[agent].hear_of_death(job_.scheduler.process, 128 + signal, false);
  } else if (std::erase(job_.agents[agent].rehearsals, kill.process) != 0) {
    job_.agents[agent].hear_of_death(process, 128 + signal, false);
  }
}

void Agents::spawn(Index agent, const agent::Spawn& what) {
  if (job_.agents[agent].knows_end) {
    job_.checkers.violate("P26: a process is started for a job of which its agent knows the end");
  }
  if (spawns_fail_ > 0) {
    --spawns_fail_;
    job_.agents[agent].not_spawned.push_back(what.process);
  } else if (what.role == agent::Role::kScheduler) {
    job_.scheduler.process = number_in_world(agent, what.process);
    job_.scheduler.starting = true;
  } else if (what.role == agent::Role::kRehearsal) {
    job_.agents[agent].rehearsals.push_back(what.process);
  } else {
    workers_.add(number_in_world(agent, what.process), what.node_id, what.incarnation, what.attempt,
                 what.role == agent::Role::kSpare, what.serves, agent);
  }
}

// When an agent dies its processes end, too, because they watch it.
void Agents::kill(Index index) {
  AgentProcess& agent = job_.agents[index];
  agent.alive = false;
  writers_.cut_short(index);
  agent.rehearsals.clear();
  if (agent.link != kNone) connections_.client_is_gone(agent.link, job_.choices.pick(2) == 0);
  agent.link = kNone;
  for (auto& worker : job_.workers) {
    if (worker.alive && worker.agent == index) worker.signal = 9;
  }
}

void Agents::stop(Worker& worker, Instant until) {
  worker.paused_until = until;
  // If it is stopped again at once, nobody saw it running.
  if (!worker.stopped) worker.stopped = job_.now;
  if (worker.agent != kNone) begin_looking(worker.agent);
}

// The control threads of all go on. So only the looks of the agents can find this.
void Agents::hang(Worker& worker) {
  worker.hung = training_.whereabouts(worker);
  for (Index i = 0; i < job_.agents.size(); ++i) {
    if (job_.agents[i].runs()) begin_looking(i);
  }
}

bool Agents::any_hangs() const {
  return std::any_of(job_.workers.begin(), job_.workers.end(),
                     [](const Worker& worker) { return worker.alive && worker.hung; });
}

void Agents::stop_scheduler() {
  if (!job_.scheduler.stopped) job_.scheduler.stopped = job_.now;
  if (!job_.agents.empty()) begin_looking(0);
}

void Agents::begin_looking(Index index) {
  AgentProcess& agent = job_.agents[index];
  if (agent.next_look) return;
  agent.last_look = job_.now;
  agent.next_look = job_.now + agent::kLookEvery;
}

// The agent looks for stopped processes. The world skips these looks while there is none.
void Agents::look(Index index) {
  AgentProcess& agent = job_.agents[index];
  agent::Looked seen{.stopped = {}, .on_time = job_.now <= agent.last_look + 2 * agent::kLookEvery};
  std::set<Index> signalled;
  for (Index i = 0; i < job_.workers.size(); ++i) {
    Worker& worker = job_.workers[i];
    if (worker.signal != 0) signalled.insert(i);
    if (worker.agent != index) continue;
    if (worker.paused_until <= job_.now) worker.stopped.reset();
    if (!worker.alive) continue;
    if (worker.stopped) seen.stopped.insert(number_at_agent(worker.process));
    if (!job_.had(Fault::kHang)) continue;
    seen.whereabouts[number_at_agent(worker.process)] = training_.whereabouts(worker);
  }
  if (job_.scheduler.paused_until <= job_.now || !job_.scheduler.machine) {
    job_.scheduler.stopped.reset();
  }
  if (index == 0 && job_.scheduler.stopped) {
    seen.stopped.insert(number_at_agent(job_.scheduler.process));
  }
  agent.last_look = job_.now;
  agent.next_look = job_.now + agent::kLookEvery;
  tell(index, seen);
  if (seen.stopped.empty() && !any_hangs()) job_.agents[index].next_look.reset();
  for (Index i = 0; i < job_.workers.size(); ++i) {
    const Worker& worker = job_.workers[i];
    if (worker.signal == 0 || signalled.contains(i)) continue;
    const Instant since =
        std::max(worker.stopped.value_or(job_.now), job_.agents[index].stood_still);
    if (job_.now < since + (agent::kStoppedLooks - 1) * agent::kLookEvery) {
      job_.checkers.violate("L5: an agent ended a process that had hardly been stopped");
    }
  }
}

void Agents::check_stopped_are_ended() {
  const auto too_long = [&](const std::optional<Instant>& stopped, Instant until, Index agent) {
    return stopped && until > job_.now &&
           job_.now > std::max(*stopped, job_.agents[agent].stood_still) + kStoppedBound;
  };
  const bool watched = !job_.agents.empty() && job_.agents[0].runs() && job_.scheduler.machine;
  if (watched && too_long(job_.scheduler.stopped, job_.scheduler.paused_until, 0)) {
    job_.checkers.violate("L5: nobody ended a scheduler that is stopped");
  }
  for (const Worker& worker : job_.workers) {
    if (!worker.alive || worker.agent == kNone || !job_.agents[worker.agent].runs()) continue;
    if (too_long(worker.stopped, worker.paused_until, worker.agent)) {
      job_.checkers.violate("L5: nobody ended a process that is stopped");
    }
  }
}

void Agents::promote(Index agent, Index which) {
  const agent::Promote promotion = take(job_.agents[agent].promotions, which);
  const Index i = worker_of(number_in_world(agent, promotion.process));
  if (i == kNone || !job_.workers[i].alive) return;  // The spare has died meanwhile.
  // A bound spare has prepared for its own place from its start.
  if (job_.setup.bound_spares && job_.workers[i].node_id != promotion.node_id) {
    job_.checkers.violate("a spare was given another place than its own");
  }
  job_.workers[i].node_id = promotion.node_id;
  job_.workers[i].attempt = promotion.attempt;
  workers_.place(job_.workers[i]);
}

void Agents::interrupt(Index index) {
  AgentProcess& agent = job_.agents[index];
  const bool idle =
      std::none_of(job_.workers.begin(), job_.workers.end(),
                   [&](const Worker& worker) { return worker.alive && worker.agent == index; });
  agent.is_hurried = idle || agent.machine.state() >= agent::State::kEnding;
  tell(index, agent::Interrupted{2});
}

void Agents::fail_spawns() {
  const auto left = static_cast<std::uint32_t>(agent::kSpawnTries - 1 - spawns_failed_);
  spawns_fail_ = 1 + job_.choices.pick(std::min<std::uint32_t>(3, left));
  spawns_failed_ += static_cast<std::int32_t>(spawns_fail_);
}

}  // namespace holdfast::sim
