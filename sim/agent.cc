// The agent's process: plays its machine, starts the others and hears of their deaths.
#include <algorithm>

#include "base/text.h"
#include "sim/words.h"
#include "sim/world.h"

namespace holdfast::sim {
namespace {

constexpr Duration kGrace = std::chrono::seconds(3);

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
  if (const auto* spawn = std::get_if<agent::Spawn>(&action)) {
    if (spawn->role == agent::Role::kScheduler) {
      scheduler_.process = spawn->process;
      scheduler_.starting = true;
    } else {
      add_worker(spawn->process, spawn->node_id, spawn->incarnation, spawn->attempt,
                 spawn->role == agent::Role::kSpare);
    }
  } else if (const auto* promotion = std::get_if<agent::Promote>(&action)) {
    promotions_.push_back(*promotion);
  } else if (const auto* send = std::get_if<agent::Send>(&action)) {
    if (agent_link_ != kNone) send_up(agent_link_, send->message);
  } else if (const auto* kill = std::get_if<agent::Kill>(&action)) {
    const std::int32_t signal = kill->gently ? 15 : 9;
    if (const Index i = worker_of(kill->process); i != kNone) {
      workers_[i].signal = std::max(workers_[i].signal, signal);
      if (signal == 9) workers_[i].signal = 9;
    } else if (kill->process == scheduler_.process && scheduler_.machine) {
      scheduler_.signal = signal;
    } else if (kill->process == scheduler_.process && scheduler_.starting) {
      scheduler_.starting = false;
      agent_hears_of_death(scheduler_.process, 128 + signal, false);
    }
  } else if (std::holds_alternative<agent::WantGrace>(action)) {
    graces_.push_back(now_ + kGrace);
  } else if (const auto* exit = std::get_if<agent::Exit>(&action)) {
    exited_ = *exit;
  }
}

void World::agent_hears_of_death(agent::Process process, std::int32_t code, bool lifeline) {
  if (lifeline) deaths_.push_back({process, std::nullopt, "died", 1});
  std::string how = code > 128 ? "was killed by signal " : "ended with exit code ";
  append(how, code > 128 ? code - 128 : code);
  deaths_.push_back({process, code, std::move(how), 1});
}

void World::promote(Index which) {
  const agent::Promote promotion = promotions_[which];
  promotions_.erase(promotions_.begin() + static_cast<std::ptrdiff_t>(which));
  const Index i = worker_of(promotion.process);
  if (i == kNone || !workers_[i].alive) return;  // It has died meanwhile: nobody reads this.
  workers_[i].node_id = promotion.node_id;
  workers_[i].attempt = promotion.attempt;
  place(workers_[i]);
}

}  // namespace holdfast::sim
