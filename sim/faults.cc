#include "sim/faults.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "base/text.h"

namespace holdfast::sim {
namespace {

constexpr Duration kShortPause = std::chrono::seconds(1);
constexpr Duration kMoment = std::chrono::milliseconds(350);  // Too short: the agent ends nobody.
constexpr Duration kAway = std::chrono::milliseconds(300);    // Too short: no host counts as lost.
constexpr Duration kLongPause = std::chrono::seconds(8);      // Longer than a lease.
constexpr Duration kHiccup = std::chrono::seconds(4);         // Longer than a lease.
constexpr std::uint32_t kBurst = 25;                          // In transitions.
constexpr std::uint32_t kBurstRarity = 6;

}  // namespace

Faults::Faults(Job& job, const Targets& targets, const Deadlines& deadlines,
               const Narrator& narrator)
    : job_(job),
      connections_(targets.connections),
      journal_(targets.journal),
      memory_(targets.memory),
      scheduler_(targets.scheduler),
      workers_(targets.workers),
      training_(targets.training),
      agents_(targets.agents),
      writers_(targets.writers),
      disk_(targets.disk),
      deadlines_(deadlines),
      narrator_(narrator),
      left_(job.setup.faults) {}

// In its last step nobody would come to a later operation and wait for it. If all hang, nobody
// waits either. Before its first step no process is ended.
bool Faults::may_hang(const Worker& worker) const {
  const Whereabouts where = training_.whereabouts(worker);
  return where.doing == Doing::kComputing && !where.waits_for_team && where.version != kNoVersion &&
         where.version + 2 < job_.setup.steps && where.steps > 0 && !agents_.any_hangs();
}

void Faults::list_faults() {
  mishaps_.clear();
  const auto add = [&](bool condition, Fault fault, Index index) {
    if (condition && (job_.setup.kinds & bit(fault)) != 0) mishaps_.push_back({fault, index});
  };
  for (Index i = 0; i < job_.workers.size(); ++i) {
    const Worker& worker = job_.workers[i];
    if (!worker.alive) continue;
    const bool placed = worker.program != Program::kSpare;
    add(true, Fault::kKill, i);
    add(worker.paused_until <= job_.now, Fault::kPause, i);
    add(worker.paused_until <= job_.now, Fault::kStop, i);
    const bool owns = worker.rank != kNoRank && memory_.arena(worker).owner == worker.process;
    const bool ended = worker.program == Program::kEnded ||
                       (worker.trainer && worker.trainer->state() == trainer::State::kEnding);
    add(owns && !ended, Fault::kWipe, i);
    add(placed && !job_.setup.agent, Fault::kDouble, i);
    add(placed && !worker.foreign && journal_.has_roster(), Fault::kForeign, i);
    // The program is in its own code, within a step.
    const bool trains = worker.program == Program::kTraining && !worker.work.empty() &&
                        std::holds_alternative<trainer::Return>(worker.work.front()) &&
                        worker.trainer->state() == trainer::State::kStepping;
    add(trains, Fault::kUserError, i);
    add(may_hang(worker), Fault::kHang, i);
    const bool loses = owns && !ended && worker.program == Program::kTraining &&
                       memory_.arena(worker).version != kNoVersion && !memory_.any_pages_lost();
    add(loses, Fault::kLosePages, i);
    add(placed && !ended && !worker.leaving, Fault::kEarlyExit, i);
  }
  add(true, Fault::kKillAll, 0);
  add(job_.setup.snapshots, Fault::kWipeAll, 0);
  add(job_.setup.snapshots && !journal_.has_ended(), Fault::kPowerCut, 0);
  if (job_.scheduler.machine) {
    add(true, Fault::kKillScheduler, 0);
    add(!job_.scheduler.stores.empty(), Fault::kStoreCrash, 0);
    add(!job_.scheduler.stores.empty(), Fault::kStoreFails, 0);
    add(job_.scheduler.paused_until <= job_.now, Fault::kStopScheduler, 0);
    add(job_.scheduler_runs() && !job_.is_paused(), Fault::kPauseJob, 0);
  }
  for (Index i = connections_.first_open(); i < job_.links.size(); ++i) {
    const auto& link = job_.links[i];
    if (!link.client_open || link.client_gone || link.scheduler_gone) continue;
    add(true, Fault::kBreak, i);
    add(job_.flows(link), Fault::kStall, i);
  }
  add(deadlines_.next().has_value(), Fault::kHiccup, 0);
  add(job_.setup.agent && agents_.may_fail_spawns(), Fault::kSpawnFails, 0);
  for (Index i = 0; i < job_.agents.size(); ++i) {
    add(job_.agents[i].runs(), Fault::kInterrupt, i);
    add(i > 0 && job_.agents[i].runs(), Fault::kKillAgent, i);
    add(i > 0 && job_.agents[i].runs(), Fault::kLoseHost, i);
    add(i > 0 && job_.agents[i].runs() && job_.agents[i].cut_until <= job_.now, Fault::kCutHost, i);
    add(i > 0 && job_.agents[i].runs() && job_.agents[i].link != kNone, Fault::kReset, i);
    add(job_.agents[i].runs() && job_.scheduler_runs(), Fault::kMove, i);
  }
  const auto& groups = training_.groups();
  const auto newest = groups.empty() ? groups.end() : std::prev(groups.end());
  if (newest != groups.end() && newest->second.linked && !newest->second.aborted) {
    add(true, Fault::kLinksFail, static_cast<Index>(newest->first));
  }
}

bool Faults::maybe_strike(std::uint32_t transitions) {
  if (left_ == 0 || job_.setup.kinds == 0) return false;
  list_faults();
  const auto n = static_cast<std::uint32_t>(mishaps_.size());
  const bool soon = job_.setup.burst && transitions < burst_until_;
  const std::uint32_t rarity =
      soon ? std::min(kBurstRarity, job_.setup.fault_rarity) : job_.setup.fault_rarity;
  const std::uint32_t which = job_.choices.pick(n + 1, rarity);
  if (which == 0) return false;
  --left_;
  burst_until_ = transitions + kBurst;
  job_.last_fault = std::max(job_.last_fault, job_.now);
  const Mishap mishap = mishaps_[which - 1];
  job_.struck |= bit(mishap.fault);
  job_.log.fold(0xfa417 + static_cast<std::uint64_t>(mishap.fault) * 1024 + mishap.index);
  if (job_.log.is_wanted()) job_.log.tell(cat("  *** ", narrator_.describe(mishap)));
  strike(mishap);
  return true;
}

// Nothing comes from there for a while: the host may be taken for lost.
void Faults::stall(Index link, Duration lasting) {
  if (job_.setup.hosts) job_.checkers.wiped();  // As in lose_sight_of().
  job_.links[link].stalled_until = job_.now + lasting;
  disturb(job_.links[link], job_.links[link].stalled_until);
}

// A long pause, or the other one.
static Duration pause_of(Job& job, Duration other) {
  return job.choices.pick(2) == 0 ? kLongPause : other;
}

void Faults::strike(const Mishap& mishap) {
  const Index i = mishap.index;
  const auto lasting = [&] { return pause_of(job_, kShortPause); };
  switch (mishap.fault) {
    case Fault::kKill:
    case Fault::kWipe:
      return kill_workers(mishap.fault == Fault::kWipe, i);
    case Fault::kKillAll:
      return kill_workers(false, kNone);
    case Fault::kWipeAll:
      return wipe_all();
    case Fault::kPowerCut:
      return cut_power();
    case Fault::kKillScheduler:
    case Fault::kStoreCrash:
      return scheduler_.kill(137, mishap.fault == Fault::kStoreCrash);
    case Fault::kStoreFails:
      return scheduler_.kill(1, false);
    case Fault::kBreak: {
      const bool idle = job_.links[i].up.empty() && job_.links[i].down.empty();
      disturb(job_.links[i], job_.now);
      return connections_.break_link(i, idle ? 0 : job_.choices.pick(4));
    }
    case Fault::kPause:
      job_.workers[i].paused_until = job_.now + lasting();
      job_.workers[i].stopped.reset();
      return disturb(job_.workers[i], job_.workers[i].paused_until);
    case Fault::kStop:
      agents_.stop(job_.workers[i], job_.now + pause_of(job_, kMoment));
      return disturb(job_.workers[i], job_.workers[i].paused_until);
    case Fault::kStopScheduler:
      job_.scheduler.paused_until = job_.now + pause_of(job_, kMoment);
      agents_.stop_scheduler();
      return excuse_last_calls(job_.scheduler.paused_until);
    case Fault::kForeign:
      return workers_.add_foreign(i);
    case Fault::kSpawnFails:
      return agents_.fail_spawns();
    case Fault::kStall:
      return stall(i, lasting());
    case Fault::kHiccup:
      return stand_still();
    case Fault::kDouble:
      return workers_.add_by_hand(job_.workers[i].node_id);
    case Fault::kUserError:
      return training_.fail(i, {.kind = wire::Reason::Kind::kProgram});
    case Fault::kEarlyExit:
      return workers_.die(i, 0, false, false);
    case Fault::kInterrupt:
      return agents_.interrupt(i);
    case Fault::kLinksFail:
      return training_.fail_links(i);
    case Fault::kCutHost:
      return cut_host(i);
    case Fault::kReset:
      return reset_host(i);
    case Fault::kLoseHost:
      return lose_host(i);
    case Fault::kMove:
      return ask_to_move(i);
    case Fault::kPauseJob:
      return pause_job();
    case Fault::kHang:
      return agents_.hang(job_.workers[i]);
    case Fault::kLosePages:
      return memory_.lose_pages(job_.workers[i], job_.choices.pick(2) == 0);
    case Fault::kKillAgent:
      if (job_.setup.hosts) lose_sight_of(i);
      return agents_.kill(i);
  }
}

// All processes stand still for a while. That justifies the eviction only of workers that were on
// their last call already.
void Faults::stand_still() {
  const bool longer = job_.choices.pick(2) == 1;
  job_.now = longer ? job_.now + kHiccup : std::min(*deadlines_.next(), job_.now + kHiccup);
  job_.last_fault = std::max(job_.last_fault, job_.now);
  // An agent that has missed a look counts the looks anew.
  for (auto& agent : job_.agents) {
    if (agent.next_look && job_.now > agent.last_look + 2 * agent::kLookEvery) {
      agent.stood_still = job_.now;
    }
    agent.disturbed = std::max(agent.disturbed, job_.now);
  }
  excuse_last_calls(job_.now);
}

// Nothing is received until then. That justifies the eviction only of workers on their last call.
void Faults::excuse_last_calls(Instant until) {
  job_.last_fault = std::max(job_.last_fault, until);
  for (auto& worker : job_.workers) {
    // With hosts, a whole host is on its last call, and is_on_last_call() does not know of that.
    if (is_on_last_call(worker) || job_.setup.hosts) disturb(worker, until);
  }
}

bool Faults::is_on_last_call(const Worker& worker) const {
  if (!job_.scheduler.machine) return false;
  const auto* member = job_.scheduler.machine->find(worker.node_id);
  return member != nullptr && member->called;
}

// Notes that until then the scheduler may not hear the worker, or not in time.
void Faults::disturb(Worker& worker, Instant until) {
  worker.disturbed = std::max(worker.disturbed, until);
  job_.last_fault = std::max(job_.last_fault, until);
}

void Faults::disturb(const Connection& link, Instant until) {
  job_.last_fault = std::max(job_.last_fault, until);
  if (link.exchanges) return;
  if (link.worker != kNone) return disturb(job_.workers[link.worker], until);
  AgentProcess& agent = job_.agents[link.agent];
  agent.disturbed = std::max(agent.disturbed, until);
}

// Kills all workers, or only `only`. `wipe`: their arenas are lost as well.
void Faults::kill_workers(bool wipe, Index only) {
  for (Index i = 0; i < job_.workers.size(); ++i) {
    Worker& worker = job_.workers[i];
    if (!worker.alive || (only != kNone && i != only)) continue;
    const bool speaks = worker.link != kNone && !job_.links[worker.link].up.empty();
    // Two statements, because the compiler may evaluate arguments of a call in any order.
    const bool loses = speaks && job_.choices.pick(2) == 0;
    const bool lifeline = job_.choices.pick(2) == 0;
    workers_.die(i, 137, lifeline, loses);
    if (!wipe) continue;
    memory_.lose(worker);
    memory_.note_wipe();
  }
}

void Faults::wipe_all() {
  kill_workers(false, kNone);
  const Index hosts = job_.setup.hosts ? job_.agents.size() : 1;
  for (Index host = 0; host < hosts; ++host) memory_.lose_host(host);
  memory_.note_wipe();
}

// World sees to what comes after.
void Faults::cut_power() {
  for (Index i = 0; i < job_.agents.size(); ++i) writers_.cut_short(i);
  job_.is_cut_short = true;
}

bool Faults::is_of_host(const Connection& link, Index agent) const {
  return (link.worker == kNone ? link.agent : job_.workers[link.worker].agent) == agent;
}

// A host is lost with all that it had. Its peers notice the ends of all its connections, or of
// none.
void Faults::lose_host(Index index) {
  AgentProcess& lost = job_.agents[index];
  lost.alive = false;
  writers_.cut_short(index);
  const bool silent = job_.choices.pick(3) != 2;
  lost.is_down = silent;
  for (auto& link : job_.links) {
    if (!is_of_host(link, index) || !link.client_open) continue;
    link.client_open = false;
    link.down.clear();
    link.client_gone = !silent;
    if (job_.choices.pick(2) == 0) link.up.clear();
  }
  for (auto& worker : job_.workers) {
    if (worker.agent != index || !worker.alive) continue;
    worker.alive = false;
    worker.died_at = job_.now;
    worker.link = worker.exchange.link = kNone;
  }
  memory_.lose_host(index);
  lose_sight_of(index);
  agents_.start_again(index);
}

// A user asks to move the ranks of host `from`, and does not wait for the answer.
void Faults::ask_to_move(Index from) {
  scheduler_.order(wire::Move{cat("host-", from), "", job_.choices.pick(2) == 1});
}

void Faults::pause_job() {
  constexpr std::array kFor = {kShortPause, kLongPause, kMoment, Duration{}};
  job_.person.paused_at = job_.now;
  job_.person.resumes_at = job_.now + kFor[job_.choices.pick(kFor.size())];
  job_.last_fault = std::max(job_.last_fault, job_.person.resumes_at);
  scheduler_.order(wire::Pause{.on = true});
}

// The host may be taken for lost. It may have committed a step of which nobody else knows. If its
// places are given away, that step is lost.
void Faults::lose_sight_of(Index agent) {
  job_.agents[agent].is_host_lost = true;
  memory_.note_wipe();
}

// All connections of the host end, but its processes live, and connect again soon.
void Faults::reset_host(Index index) {
  AgentProcess& agent = job_.agents[index];
  agent.away_until = job_.now + (job_.choices.pick(2) == 0 ? kAway : kAway / 6);
  for (Index i = connections_.first_open(); i < job_.links.size(); ++i) {
    if (!is_of_host(job_.links[i], index) || !job_.links[i].client_open) continue;
    disturb(job_.links[i], agent.away_until);
    connections_.break_link(i, job_.choices.pick(2) == 0 ? 0 : 3);
  }
  // Together with other faults, the host may be taken for lost.
  if (job_.setup.kinds != bit(Fault::kReset)) job_.checkers.wiped();
}

// Cuts the host off for a while: all messages from it and to it come late.
void Faults::cut_host(Index index) {
  const bool longer = job_.choices.pick(2) == 0;
  const Instant until = job_.now + (longer ? kLongPause : kShortPause);
  job_.agents[index].cut_until = until;
  for (auto& link : job_.links) {
    if (!is_of_host(link, index) || !link.client_open) continue;
    link.stalled_until = std::max(link.stalled_until, until);
    disturb(link, until);
  }
  lose_sight_of(index);
}

// Whether the rank has its state no more. A rank that has moved counts as one without state: an
// arena on its new host may be an old one.
bool Faults::is_lost(Rank rank) const {
  const wire::Seat& seat = journal_.formation()->roster.at(static_cast<std::size_t>(rank));
  const Index host = job_.setup.hosts ? memory_.host_named(seat.host) : 0;
  const bool unseen = job_.setup.hosts && job_.agents[host].is_host_lost;
  const Arena& arena = memory_.arena(host, rank);
  const bool is_empty = arena.version == kNoVersion || arena.lost_state;
  return seat.moved || unseen || is_empty;
}

// Whether no worker has its state any more: servers do not have it.
bool Faults::is_all_lost() const {
  for (Rank rank = 0; rank < job_.setup.workers(); ++rank) {
    if (!is_lost(rank)) return false;
  }
  return true;
}

// Whether what only this rank has may be lost.
bool Faults::may_lack(Rank rank) const {
  if (job_.setup.serves(rank) && !is_lost(rank)) return false;
  const bool had_private = job_.setup.private_is_own || job_.setup.serves(rank);
  if (!memory_.has_holder(rank)) return had_private;
  // A holder that has ended its training gives nothing any more. A host may be taken for lost if
  // nothing comes from it for a while, or if it was on its last call while everything stood still.
  const auto had = [&](Fault fault) { return job_.had(fault); };
  if (job_.setup.hosts && (!job_.setup.holders || journal_.any_finished() || had(Fault::kStall) ||
                           had(Fault::kHiccup) || had(Fault::kReset))) {
    return had_private;
  }
  // After a load, holders have nothing until the group has formed.
  const bool needs_two = job_.setup.holders && !journal_.any_finished() && !had(Fault::kMove) &&
                         !had(Fault::kWipeAll) && !journal_.has_loaded();
  return had_private && memory_.wipes() > (needs_two ? 1 : 0);
}

// Whether no version can be reached any more, since this rank (kNoRank: all) lacks its state.
bool Faults::may_have_no_plan(Rank lacking) const {
  const wire::Formation& record = *journal_.formation();
  // Once a rank has ended its training, no snapshot will do.
  if (!journal_.any_finished() && disk_.readable(record.snapshots) > 0) return false;
  if (record.loads) return true;  // What is still there is to be given up.
  // Where nothing was made yet, the job begins anew.
  if (lacking == kNoRank) {
    return is_all_lost() && (record.reached > 0 || job_.had(Fault::kLosePages));
  }
  return may_lack(lacking);
}

bool Faults::justify_load() const {
  for (Rank rank = 0; rank < job_.setup.ranks; ++rank) {
    if (may_lack(rank) && is_lost(rank)) return true;
  }
  return is_all_lost();
}

bool Faults::justify(const wire::Reason& reason) const {
  using Why = wire::Reason::Kind;
  const auto had = [&](Fault fault) { return job_.had(fault); };
  // The agent may see its workers give up before it hears why the job has ended.
  const bool failed = journal_.has_ended() && !journal_.formation()->success;
  // The last message of an agent that has left may be lost. Then the scheduler waits in vain.
  const auto has_left = [&](const AgentProcess& agent) {
    if (!agent.exited) return false;
    const Why why = agent.exited->reason.kind;
    return why == Why::kTooOften || why == Why::kInterrupted || why == Why::kProgram ||
           agent.is_hurried;
  };
  const bool has_ended = journal_.has_ended();
  const bool first_has_left = job_.agents.size() > 1 && job_.agents[0].exited;
  const bool an_agent_left = std::any_of(job_.agents.begin(), job_.agents.end(), has_left);
  switch (reason.kind) {
    case Why::kInterrupted:
      return had(Fault::kInterrupt);
    case Why::kOutOfReach:  // An agent did not hear of the job's end, and the scheduler has exited.
      return job_.struck != 0 && has_ended && first_has_left;
    case Why::kProgram:
      return had(Fault::kUserError) || training_.lost_at_end() ||
             (training_.asked_in_vain() && had(Fault::kEarlyExit));
    case Why::kTooOften:
      return job_.setup.max_restarts < 100 ||
             (failed && journal_.formation()->end != reason && justify(journal_.formation()->end));
    case Why::kProcessEnded:  // The process had heard that the job has failed; its agent had not.
      return failed && justify(journal_.formation()->end);
    case Why::kTooFewCame:
    case Why::kNotFormedInTime:
      return had(Fault::kEarlyExit) || had(Fault::kKillAgent) || had(Fault::kLoseHost) ||
             an_agent_left || !job_.setup.replaced;
    case Why::kEndedEarly:
    case Why::kEndedWithoutTraining:
      return had(Fault::kEarlyExit);
    case Why::kNoPlan:  // A private part is lost with its arena or, if it is held, with both
                        // copies.
      return may_have_no_plan(reason.rank);
    case Why::kNotRepaired:
      return training_.source_lost();
    case Why::kNone:
      return job_.scheduler.lost;
    default:
      return false;
  }
}

}  // namespace holdfast::sim
