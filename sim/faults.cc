// Faults: which could strike now, what each does, and which ends of a job they excuse.
#include <algorithm>

#include "base/text.h"
#include "sim/world.h"

namespace holdfast::sim {
namespace {

constexpr Duration kShortPause = std::chrono::seconds(1);
constexpr Duration kMoment = std::chrono::milliseconds(350);  // Too short to be ended for it.
constexpr Duration kLongPause = std::chrono::seconds(8);      // Longer than a lease.
constexpr Duration kHiccup = std::chrono::seconds(4);         // Likewise.
constexpr std::uint32_t kBurst = 25;                          // Transitions.
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
    // In the program's own code, in a step.
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
  add(setup_.agent && !exited_, Fault::kInterrupt, 0);
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
  const auto told = [&](const std::string& text) {
    if (log_) tell(cat("  *** ", text));
  };
  const auto lasting = [&] { return choices_.pick(2) == 0 ? kLongPause : kShortPause; };
  switch (mishap.fault) {
    case Fault::kKill:
      told(cat("kill process ", workers_[i].process, " ", workers_[i].node_id));
      return kill_workers(false, i);
    case Fault::kWipe:
      told(cat("process ", workers_[i].process, " ", workers_[i].node_id,
               " and its arena are lost"));
      return kill_workers(true, i);
    case Fault::kKillAll:
      told("kill all workers");
      return kill_workers(false, kNone);
    case Fault::kKillScheduler:
      told("kill the scheduler");
      return kill_scheduler(137, false);
    case Fault::kStoreCrash:
      told("kill the scheduler; its store is durable");
      return kill_scheduler(137, true);
    case Fault::kStoreFails:
      told("the journal can not be written: the scheduler ends itself");
      return kill_scheduler(1, false);
    case Fault::kBreak: {
      const bool idle = links_[i].up.empty() && links_[i].down.empty();
      told(cat("connection ", i + 1, " breaks"));
      disturb(links_[i], now_);
      return break_link(i, idle ? 0 : choices_.pick(4));
    }
    case Fault::kPause:
      told(cat("process ", workers_[i].process, " is stopped for a while"));
      workers_[i].paused_until = now_ + lasting();
      workers_[i].stopped.reset();
      return disturb(workers_[i], workers_[i].paused_until);
    case Fault::kStop:
      told(cat("process ", workers_[i].process, " is stopped (SIGSTOP)"));
      workers_[i].paused_until = now_ + (choices_.pick(2) == 0 ? kLongPause : kMoment);
      stop(workers_[i]);
      return disturb(workers_[i], workers_[i].paused_until);
    case Fault::kStopScheduler:
      told("the scheduler is stopped (SIGSTOP)");
      scheduler_.paused_until = now_ + (choices_.pick(2) == 0 ? kLongPause : kMoment);
      stop_scheduler();
      return excuse_last_calls(scheduler_.paused_until);
    case Fault::kForeign:
      told(cat("a process of another host asks for the place of ", workers_[i].node_id));
      return add_foreign(i);
    case Fault::kSpawnFails: {
      const auto left = static_cast<std::uint32_t>(agent::kSpawnTries - 1 - spawns_failed_);
      spawns_fail_ = 1 + choices_.pick(std::min<std::uint32_t>(3, left));
      spawns_failed_ += static_cast<std::int32_t>(spawns_fail_);
      return told(cat("the next ", spawns_fail_, " processes can not be started"));
    }
    case Fault::kStall:
      told(cat("connection ", i + 1, " delivers nothing for a while"));
      links_[i].stalled_until = now_ + lasting();
      return disturb(links_[i], links_[i].stalled_until);
    case Fault::kHiccup:
      told("everything stands still for a while");
      return stand_still();
    case Fault::kDouble:
      told(cat("a second process is started as ", workers_[i].node_id));
      add_worker(next_process_++, workers_[i].node_id, prng_.next(), 0, false);
      return;
    case Fault::kUserError:
      told(cat("the training of ", workers_[i].node_id, " fails"));
      return fail_training(i, {.kind = wire::Reason::Kind::kProgram});
    case Fault::kEarlyExit:
      told(cat("process ", workers_[i].process, " exits with code 0"));
      return die(i, 0, false, false);
    case Fault::kInterrupt:
      told("the agent is interrupted");
      return tell_agent(agent::Interrupted{2});
  }
}

// No excuse for an eviction, but of those who were on their last call already.
void World::stand_still() {
  const bool longer = choices_.pick(2) == 1;
  now_ = longer ? now_ + kHiccup : std::min(*next_time(), now_ + kHiccup);
  last_fault_ = std::max(last_fault_, now_);
  // The agent has missed a look and counts anew.
  if (next_look_ && now_ > last_look_ + 2 * agent::kLookEvery) stood_still_ = now_;
  agent_disturbed_ = std::max(agent_disturbed_, now_);
  excuse_last_calls(now_);
}

// Nothing is heard until then. That is an excuse for those only who are on their last call.
void World::excuse_last_calls(Instant until) {
  last_fault_ = std::max(last_fault_, until);
  for (auto& worker : workers_) {
    if (is_on_last_call(worker)) disturb(worker, until);
  }
}

// Before that, whoever comes first says which host is meant.
bool World::has_durable_roster() const {
  return durable_ && !durable_->roster.empty();
}

bool World::is_on_last_call(const Worker& worker) const {
  if (!scheduler_.machine) return false;
  const auto* member = scheduler_.machine->find(worker.node_id);
  return member != nullptr && member->called;
}

// It can not be heard, or not in time, until then.
void World::disturb(Worker& worker, Instant until) {
  worker.disturbed = std::max(worker.disturbed, until);
  last_fault_ = std::max(last_fault_, until);
}

void World::disturb(const Connection& link, Instant until) {
  if (link.worker != kAgentEnd) return disturb(workers_[link.worker], until);
  agent_disturbed_ = std::max(agent_disturbed_, until);
  last_fault_ = std::max(last_fault_, until);
}

// All of them, or `only` one.
void World::kill_workers(bool wipe, Index only) {
  for (Index i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!worker.alive || (only != kNone && i != only)) continue;
    const bool speaks = worker.link != kNone && !links_[worker.link].up.empty();
    die(i, 137, choices_.pick(2) == 0, speaks && choices_.pick(2) == 0);
    if (!wipe) continue;
    arena(worker) = Arena{.spent = finished(worker.rank)};
    checkers_.wiped();
  }
}

// Whether a job may end badly for this reason, after what has happened to it.
bool World::is_legitimate(const wire::Reason& reason) const {
  using Why = wire::Reason::Kind;
  const auto had = [&](Fault fault) { return (struck_ & bit(fault)) != 0; };
  // The agent may see its workers give up before it hears that, and why, the job has ended.
  const bool failed = durable_ && durable_->stage == wire::Stage::kEnded && !durable_->success;
  switch (reason.kind) {
    case Why::kInterrupted:
      return had(Fault::kInterrupt);
    case Why::kProgram:
      return had(Fault::kUserError);
    case Why::kTooOften:
      return setup_.max_restarts < 100 ||
             (failed && durable_->end != reason && is_legitimate(durable_->end));
    case Why::kTooFewCame:
    case Why::kNotFormedInTime:
      return had(Fault::kEarlyExit) || !setup_.replaced;
    case Why::kEndedEarly:
    case Why::kEndedWithoutTraining:
      return had(Fault::kEarlyExit);
    case Why::kNotRepaired:
      return source_lost_;
    default:
      return false;
  }
}

}  // namespace holdfast::sim
