// The agent's process: plays its machine, starts the others and hears of their deaths.
#include <algorithm>

#include "base/text.h"
#include "sim/world.h"
#include "wording/machines.h"

namespace holdfast::sim {

using wording::to_words;
namespace {

constexpr Duration kGrace = std::chrono::seconds(3);
constexpr Duration kStoppedBound = std::chrono::milliseconds(1500);

}  // namespace

void World::start_agent() {
  agent::Options options;
  options.job = "job";
  options.agent_id = "agent";
  options.host = "host";
  for (Rank rank = 0; rank < setup_.ranks; ++rank) options.workers.push_back(cat("w", rank));
  options.world_size = setup_.ranks;
  options.seed = 1;
  options.runs_scheduler = true;
  options.spares = setup_.spares;
  options.bound_spares = setup_.bound_spares;
  options.max_restarts = setup_.max_restarts;
  agent_.emplace(std::move(options));
  tell_agent(agent::Started{});
}

void World::tell_agent(const agent::Event& event) {
  for (const auto& action : agent_->step(event)) carry_out(action);
}

World::Index World::worker_of(agent::Process process) const {
  for (Index i = 0; i < workers_.size(); ++i) {
    if (workers_[i].process == process) return i;
  }
  return kNone;
}

void World::carry_out(const agent::Action& action) {
  if (log_) tell(cat("    agent: ", to_words(action)));
  fold(action.index());
  if (const auto* spawned = std::get_if<agent::Spawn>(&action)) {
    spawn(*spawned);
  } else if (const auto* promotion = std::get_if<agent::Promote>(&action)) {
    promotions_.push_back(*promotion);
  } else if (const auto* send = std::get_if<agent::Send>(&action)) {
    if (agent_link_ != kNone) send_up(agent_link_, send->message);
  } else if (const auto* kill = std::get_if<agent::Kill>(&action)) {
    const std::int32_t signal = kill->gently ? 15 : 9;
    if (const Index i = worker_of(kill->process); i != kNone) {
      if (workers_[i].signal != 9) workers_[i].signal = signal;
    } else if (kill->process == scheduler_.process && scheduler_.machine) {
      if (scheduler_.signal != 9) scheduler_.signal = signal;
    } else if (kill->process == scheduler_.process && scheduler_.starting) {
      scheduler_.starting = false;
      agent_hears_of_death(scheduler_.process, 128 + signal, false);
    }
  } else if (const auto* pause = std::get_if<agent::WantPause>(&action)) {
    pauses_.push_back({now_ + pause->how_long, pause->pause});
  } else if (std::holds_alternative<agent::WantGrace>(action)) {
    graces_.push_back(now_ + kGrace);
  } else if (const auto* exit = std::get_if<agent::Exit>(&action)) {
    exited_ = *exit;
  }
}

void World::spawn(const agent::Spawn& what) {
  if (spawns_fail_ > 0) {
    --spawns_fail_;
    not_spawned_.push_back(what.process);
  } else if (what.role == agent::Role::kScheduler) {
    scheduler_.process = what.process;
    scheduler_.starting = true;
  } else {
    add_worker(what.process, what.node_id, what.incarnation, what.attempt,
               what.role == agent::Role::kSpare);
  }
}

void World::hear_not_spawned() {
  const agent::Process process = not_spawned_.front();
  not_spawned_.pop_front();
  tell_agent(agent::SpawnFailed{process, "no memory for another process"});
}

void World::end_pause(Index which) {
  const std::uint64_t pause = pauses_[which].pause;
  pauses_.erase(pauses_.begin() + static_cast<std::ptrdiff_t>(which));
  tell_agent(agent::PauseOver{pause});
}

void World::stop(Worker& worker) {
  if (!worker.stopped) worker.stopped = now_;  // Else nobody could see that it ran meanwhile.
  begin_looking();
}

void World::stop_scheduler() {
  if (!scheduler_.stopped) scheduler_.stopped = now_;
  begin_looking();
}

void World::begin_looking() {
  if (!agent_ || next_look_) return;
  last_look_ = now_;
  next_look_ = now_ + agent::kLookEvery;
}

// The agent looks for stopped processes; while there is none, nothing depends on it.
void World::look() {
  agent::Looked seen{.stopped = {}, .on_time = now_ <= last_look_ + 2 * agent::kLookEvery};
  std::set<Index> signalled;
  for (Index i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.paused_until <= now_) worker.stopped.reset();
    if (worker.alive && !worker.foreign && worker.stopped) seen.stopped.insert(worker.process);
    if (worker.signal != 0) signalled.insert(i);
  }
  if (scheduler_.paused_until <= now_ || !scheduler_.machine) scheduler_.stopped.reset();
  if (scheduler_.stopped) seen.stopped.insert(scheduler_.process);
  last_look_ = now_;
  next_look_ = now_ + agent::kLookEvery;
  tell_agent(seen);
  if (seen.stopped.empty()) next_look_.reset();
  for (Index i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.signal == 0 || signalled.contains(i)) continue;
    const Instant since = std::max(worker.stopped.value_or(now_), stood_still_);
    if (now_ < since + (agent::kStoppedLooks - 1) * agent::kLookEvery) {
      checkers_.violate("L5: an agent ended a process that had hardly been stopped");
    }
  }
}

void World::check_stopped_are_ended() {
  if (!agent_ || exited_) return;
  if (scheduler_.machine && scheduler_.stopped && scheduler_.paused_until > now_ &&
      now_ > std::max(*scheduler_.stopped, stood_still_) + kStoppedBound) {
    checkers_.violate("L5: nobody ended a scheduler that is stopped");
  }
  for (const Worker& worker : workers_) {
    if (!worker.alive || worker.foreign || !worker.stopped || worker.paused_until <= now_) continue;
    if (now_ > std::max(*worker.stopped, stood_still_) + kStoppedBound) {
      checkers_.violate("L5: nobody ended a process that is stopped");
    }
  }
}

void World::agent_hears_of_death(agent::Process process, std::int32_t code, bool lifeline) {
  using End = wire::Ending::Kind;
  if (lifeline) deaths_.push_back({process, {}, 1});
  const bool signalled = code > 128;
  deaths_.push_back(
      {process, {signalled ? End::kSignalled : End::kExited, signalled ? code - 128 : code}, 1});
}

void World::promote(Index which) {
  const agent::Promote promotion = promotions_[which];
  promotions_.erase(promotions_.begin() + static_cast<std::ptrdiff_t>(which));
  const Index i = worker_of(promotion.process);
  if (i == kNone || !workers_[i].alive) return;  // It has died meanwhile: nobody reads this.
  // It knows its place from its start: what it did since then is of no use in another.
  if (setup_.bound_spares && workers_[i].node_id != promotion.node_id) {
    checkers_.violate("a spare was given another place than its own");
  }
  workers_[i].node_id = promotion.node_id;
  workers_[i].attempt = promotion.attempt;
  place(workers_[i]);
}

}  // namespace holdfast::sim
