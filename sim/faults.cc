// Faults: which could strike now, what each does, and which failures of a job they justify.
#include <algorithm>

#include "base/text.h"
#include "sim/world.h"

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

bool World::finished(Rank rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return durable_ && at < durable_->roster.size() && durable_->roster[at].finished;
}

void World::list_faults() {
  mishaps_.clear();
  const auto add = [&](bool condition, Fault fault, Index index) {
    if (condition && (setup_.kinds & bit(fault)) != 0) mishaps_.push_back({fault, index});
  };
  for (Index i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (!worker.alive) continue;
    const bool placed = worker.program != Program::kSpare;
    add(true, Fault::kKill, i);
    add(worker.paused_until <= now_, Fault::kPause, i);
    add(worker.paused_until <= now_, Fault::kStop, i);
    const bool owns = worker.rank != kNoRank && arena(worker).owner == worker.process;
    const bool ended = worker.program == Program::kEnded ||
                       (worker.trainer && worker.trainer->state() == trainer::State::kEnding);
    add(owns && !ended, Fault::kWipe, i);
    add(placed && !setup_.agent, Fault::kDouble, i);
    add(placed && !worker.foreign && has_durable_roster(), Fault::kForeign, i);
    // The program is in its own code, within a step.
    const bool trains = worker.program == Program::kTraining && !worker.work.empty() &&
                        std::holds_alternative<trainer::Return>(worker.work.front()) &&
                        worker.trainer->state() == trainer::State::kStepping;
    add(trains, Fault::kUserError, i);
    add(placed && !ended && !worker.leaving, Fault::kEarlyExit, i);
  }
  add(true, Fault::kKillAll, 0);
  if (scheduler_.machine) {
    add(true, Fault::kKillScheduler, 0);
    add(!scheduler_.stores.empty(), Fault::kStoreCrash, 0);
    add(!scheduler_.stores.empty(), Fault::kStoreFails, 0);
    add(scheduler_.paused_until <= now_, Fault::kStopScheduler, 0);
  }
  for (Index i = first_link_; i < links_.size(); ++i) {
    const auto& link = links_[i];
    if (!link.client_open || link.client_gone || link.scheduler_gone) continue;
    add(true, Fault::kBreak, i);
    add(flows(link), Fault::kStall, i);
  }
  add(next_time().has_value(), Fault::kHiccup, 0);
  add(setup_.agent && spawns_failed_ + 1 < agent::kSpawnTries, Fault::kSpawnFails, 0);
  for (Index i = 0; i < agents_.size(); ++i) {
    add(agents_[i].runs(), Fault::kInterrupt, i);
    add(i > 0 && agents_[i].runs(), Fault::kKillAgent, i);
    add(i > 0 && agents_[i].runs(), Fault::kLoseHost, i);
    add(i > 0 && agents_[i].runs() && agents_[i].cut_until <= now_, Fault::kCutHost, i);
    add(i > 0 && agents_[i].runs() && agents_[i].link != kNone, Fault::kReset, i);
    add(agents_[i].runs() && scheduler_runs(), Fault::kMove, i);
  }
  const auto newest = groups_.empty() ? groups_.end() : std::prev(groups_.end());
  if (newest != groups_.end() && newest->second.linked && !newest->second.aborted) {
    add(true, Fault::kLinksFail, static_cast<Index>(newest->first));
  }
}

bool World::maybe_fault() {
  if (faults_left_ == 0 || setup_.kinds == 0) return false;
  list_faults();
  const auto n = static_cast<std::uint32_t>(mishaps_.size());
  const bool soon = setup_.burst && transitions_ < burst_until_;
  const std::uint32_t rarity =
      soon ? std::min(kBurstRarity, setup_.fault_rarity) : setup_.fault_rarity;
  const std::uint32_t which = choices_.pick(n + 1, rarity);
  if (which == 0) return false;
  --faults_left_;
  burst_until_ = transitions_ + kBurst;
  last_fault_ = std::max(last_fault_, now_);
  const Mishap mishap = mishaps_[which - 1];
  struck_ |= bit(mishap.fault);
  fold(0xfa417 + static_cast<std::uint64_t>(mishap.fault) * 1024 + mishap.index);
  strike(mishap);
  return true;
}

void World::strike(const Mishap& mishap) {
  const Index i = mishap.index;
  if (log_) tell(cat("  *** ", describe(mishap)));
  const auto lasting = [&] { return choices_.pick(2) == 0 ? kLongPause : kShortPause; };
  const auto stopped = [&] { return now_ + (choices_.pick(2) == 0 ? kLongPause : kMoment); };
  switch (mishap.fault) {
    case Fault::kKill:
      return kill_workers(false, i);
    case Fault::kWipe:
      return kill_workers(true, i);
    case Fault::kKillAll:
      return kill_workers(false, kNone);
    case Fault::kKillScheduler:
      return kill_scheduler(137, false);
    case Fault::kStoreCrash:
      return kill_scheduler(137, true);
    case Fault::kStoreFails:
      return kill_scheduler(1, false);
    case Fault::kBreak: {
      const bool idle = links_[i].up.empty() && links_[i].down.empty();
      disturb(links_[i], now_);
      return break_link(i, idle ? 0 : choices_.pick(4));
    }
    case Fault::kPause:
      workers_[i].paused_until = now_ + lasting();
      workers_[i].stopped.reset();
      return disturb(workers_[i], workers_[i].paused_until);
    case Fault::kStop:
      workers_[i].paused_until = stopped();
      stop(workers_[i]);
      return disturb(workers_[i], workers_[i].paused_until);
    case Fault::kStopScheduler:
      scheduler_.paused_until = stopped();
      stop_scheduler();
      return excuse_last_calls(scheduler_.paused_until);
    case Fault::kForeign:
      return add_foreign(i);
    case Fault::kSpawnFails:
      return fail_spawns();
    case Fault::kStall:
      if (setup_.hosts) checkers_.wiped();  // The host may be taken for lost: see lose_sight_of().
      links_[i].stalled_until = now_ + lasting();
      return disturb(links_[i], links_[i].stalled_until);
    case Fault::kHiccup:
      return stand_still();
    case Fault::kDouble:
      add_worker(next_process_++, workers_[i].node_id, prng_.next(), 0, false);
      return;
    case Fault::kUserError:
      return fail_training(i, {.kind = wire::Reason::Kind::kProgram});
    case Fault::kEarlyExit:
      return die(i, 0, false, false);
    case Fault::kInterrupt:
      return interrupt(i);
    case Fault::kLinksFail:
      groups_[i].aborted = true;
      return;
    case Fault::kCutHost:
      return cut_host(i);
    case Fault::kReset:
      return reset_host(i);
    case Fault::kLoseHost:
      return lose_host(i);
    case Fault::kMove:
      return ask_to_move(i);
    case Fault::kKillAgent:
      if (setup_.hosts) lose_sight_of(i);
      return kill_agent(i);
  }
}

void World::interrupt(Index index) {
  AgentProcess& agent = agents_[index];
  const bool idle = std::none_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.alive && worker.agent == index;
  });
  agent.is_hurried = idle || agent.machine.state() >= agent::State::kEnding;
  tell_agent(index, agent::Interrupted{2});
}

void World::fail_spawns() {
  const auto left = static_cast<std::uint32_t>(agent::kSpawnTries - 1 - spawns_failed_);
  spawns_fail_ = 1 + choices_.pick(std::min<std::uint32_t>(3, left));
  spawns_failed_ += static_cast<std::int32_t>(spawns_fail_);
}

// All processes stand still for a while. That justifies the eviction only of workers that were on
// their last call already.
void World::stand_still() {
  const bool longer = choices_.pick(2) == 1;
  now_ = longer ? now_ + kHiccup : std::min(*next_time(), now_ + kHiccup);
  last_fault_ = std::max(last_fault_, now_);
  // An agent that has missed a look counts the looks anew.
  for (auto& agent : agents_) {
    if (agent.next_look && now_ > agent.last_look + 2 * agent::kLookEvery) agent.stood_still = now_;
    agent.disturbed = std::max(agent.disturbed, now_);
  }
  excuse_last_calls(now_);
}

// Nothing is received until then. That justifies the eviction only of workers on their last call.
void World::excuse_last_calls(Instant until) {
  last_fault_ = std::max(last_fault_, until);
  for (auto& worker : workers_) {
    // With hosts, a whole host is on its last call, and is_on_last_call() does not know of that.
    if (is_on_last_call(worker) || setup_.hosts) disturb(worker, until);
  }
}

bool World::any_finished() const {
  return has_durable_roster() && std::any_of(durable_->roster.begin(), durable_->roster.end(),
                                             [](const wire::Seat& seat) { return seat.finished; });
}

// Before there is a durable roster, the first process to register decides which host counts.
bool World::has_durable_roster() const {
  return durable_ && !durable_->roster.empty();
}

bool World::is_on_last_call(const Worker& worker) const {
  if (!scheduler_.machine) return false;
  const auto* member = scheduler_.machine->find(worker.node_id);
  return member != nullptr && member->called;
}

// Notes that until then the scheduler may not hear the worker, or not in time.
void World::disturb(Worker& worker, Instant until) {
  worker.disturbed = std::max(worker.disturbed, until);
  last_fault_ = std::max(last_fault_, until);
}

void World::disturb(const Connection& link, Instant until) {
  last_fault_ = std::max(last_fault_, until);
  if (link.exchanges) return;
  if (link.worker != kNone) return disturb(workers_[link.worker], until);
  AgentProcess& agent = agents_[link.agent];
  agent.disturbed = std::max(agent.disturbed, until);
}

// Kills all workers, or only `only`. `wipe`: their arenas are lost as well.
void World::kill_workers(bool wipe, Index only) {
  for (Index i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.alive || (only != kNone && i != only)) continue;
    const bool speaks = worker.link != kNone && !links_[worker.link].up.empty();
    // Two statements, because the compiler may evaluate arguments of a call in any order.
    const bool loses = speaks && choices_.pick(2) == 0;
    const bool lifeline = choices_.pick(2) == 0;
    die(i, 137, lifeline, loses);
    if (!wipe) continue;
    arena(worker) = Arena{.spent = finished(worker.rank)};
    forget_held(worker);
    ++wipes_;
    checkers_.wiped();
  }
}

bool World::is_of_host(const Connection& link, Index agent) const {
  return (link.worker == kNone ? link.agent : workers_[link.worker].agent) == agent;
}

// A host is lost with all that it had. Its peers notice the ends of all its connections, or of
// none.
void World::lose_host(Index index) {
  AgentProcess& lost = agents_[index];
  lost.alive = false;
  const bool silent = choices_.pick(3) != 2;
  lost.is_down = silent;
  for (auto& link : links_) {
    if (!is_of_host(link, index) || !link.client_open) continue;
    link.client_open = false;
    link.down.clear();
    link.client_gone = !silent;
    if (choices_.pick(2) == 0) link.up.clear();
  }
  for (auto& worker : workers_) {
    if (worker.agent != index || !worker.alive) continue;
    worker.alive = false;
    worker.died_at = now_;
    worker.link = worker.exchange.link = kNone;
  }
  for (Rank rank = 0; rank < setup_.ranks; ++rank) {
    arena(index, rank) = Arena{.spent = finished(rank)};
  }
  std::erase_if(private_parts_,
                [&](const auto& entry) { return std::get<0>(entry.first) == index; });
  lose_sight_of(index);
  start_again(index);
}

// A user asks to move the ranks of host `from`, and does not wait for the answer.
void World::ask_to_move(Index from) {
  links_.emplace_back();
  links_.back().client_open = false;
  links_.back().client_gone = links_.back().accepted = true;
  const Index link = links_.size() - 1;
  tell_controller(controller::Connected{link + 1, wire::PeerKind::kObserver});
  hear(link, wire::Move{cat("host-", from), "", choices_.pick(2) == 1});
}

// The host may be taken for lost. It may have committed a step of which nobody else knows. If its
// places are given away, that step is lost.
void World::lose_sight_of(Index agent) {
  agents_[agent].is_host_lost = true;
  ++wipes_;
  checkers_.wiped();
}

// All connections of the host end, but its processes live, and connect again soon.
void World::reset_host(Index index) {
  AgentProcess& agent = agents_[index];
  agent.away_until = now_ + (choices_.pick(2) == 0 ? kAway : kAway / 6);
  for (Index i = first_link_; i < links_.size(); ++i) {
    if (!is_of_host(links_[i], index) || !links_[i].client_open) continue;
    disturb(links_[i], agent.away_until);
    break_link(i, choices_.pick(2) == 0 ? 0 : 3);
  }
  // Together with other faults, the host may be taken for lost.
  if (setup_.kinds != bit(Fault::kReset)) checkers_.wiped();
}

// Cuts the host off for a while: all messages from it and to it come late.
void World::cut_host(Index index) {
  const bool longer = choices_.pick(2) == 0;
  const Instant until = now_ + (longer ? kLongPause : kShortPause);
  agents_[index].cut_until = until;
  for (auto& link : links_) {
    if (!is_of_host(link, index) || !link.client_open) continue;
    link.stalled_until = std::max(link.stalled_until, until);
    disturb(link, until);
  }
  lose_sight_of(index);
}

// Whether no rank has its state any more. A rank that has moved counts as one without state: an
// arena on its new host may be an old one.
bool World::is_all_lost() const {
  const auto& roster = durable_->roster;
  return std::all_of(roster.begin(), roster.end(), [&](const wire::Seat& seat) {
    const auto rank = static_cast<Rank>(&seat - roster.data());
    const Index host = setup_.hosts ? host_named(seat.host) : 0;
    const bool unseen = setup_.hosts && agents_[host].is_host_lost;
    const bool is_empty = const_cast<World*>(this)->arena(host, rank).version == kNoVersion;
    return seat.moved || unseen || is_empty;
  });
}

// Whether the faults that have happened justify that the job failed for this reason.
bool World::is_legitimate(const wire::Reason& reason) const {
  using Why = wire::Reason::Kind;
  const auto had = [&](Fault fault) { return (struck_ & bit(fault)) != 0; };
  // The agent may see its workers give up before it hears why the job has ended.
  const bool failed = durable_ && durable_->stage == wire::Stage::kEnded && !durable_->success;
  // The last message of an agent that has left may be lost. Then the scheduler waits in vain.
  const auto has_left = [&](const AgentProcess& agent) {
    if (!agent.exited) return false;
    const Why why = agent.exited->reason.kind;
    return why == Why::kTooOften || why == Why::kInterrupted || why == Why::kProgram ||
           agent.is_hurried;
  };
  const bool has_ended = durable_ && durable_->stage == wire::Stage::kEnded;
  const bool first_has_left = agents_.size() > 1 && agents_[0].exited;
  const bool an_agent_left = std::any_of(agents_.begin(), agents_.end(), has_left);
  switch (reason.kind) {
    case Why::kInterrupted:
      return had(Fault::kInterrupt);
    case Why::kOutOfReach:  // An agent did not hear of the job's end, and the scheduler has exited.
      return struck_ != 0 && has_ended && first_has_left;
    case Why::kProgram:
      return had(Fault::kUserError) || (asked_in_vain_ && had(Fault::kEarlyExit));
    case Why::kTooOften:
      return setup_.max_restarts < 100 ||
             (failed && durable_->end != reason && is_legitimate(durable_->end));
    case Why::kProcessEnded:  // The process had heard that the job has failed; its agent had not.
      return failed && is_legitimate(durable_->end);
    case Why::kTooFewCame:
    case Why::kNotFormedInTime:
      return had(Fault::kEarlyExit) || had(Fault::kKillAgent) || had(Fault::kLoseHost) ||
             an_agent_left || !setup_.replaced;
    case Why::kEndedEarly:
    case Why::kEndedWithoutTraining:
      return had(Fault::kEarlyExit);
    case Why::kNoPlan:  // A private part is lost with its arena or, if it is held, with both
                        // copies.
      if (reason.rank == kNoRank) return is_all_lost();
      // A holder that has ended its training gives nothing any more. A host may be taken for lost
      // if nothing comes from it for a while, or if it was on its last call while everything stood
      // still.
      if (setup_.hosts && (!setup_.holders || any_finished() || had(Fault::kStall) ||
                           had(Fault::kHiccup) || had(Fault::kReset))) {
        return setup_.private_is_own;
      }
      return setup_.private_is_own &&
             wipes_ > (setup_.holders && !any_finished() && !had(Fault::kMove) ? 1 : 0);
    case Why::kNotRepaired:
      return source_lost_;
    case Why::kNone:
      return scheduler_.lost;
    default:
      return false;
  }
}

}  // namespace holdfast::sim
