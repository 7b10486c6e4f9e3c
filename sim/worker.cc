// Workers as processes: they start, connect, speak through their member machine, and die.
#include <algorithm>

#include "base/text.h"
#include "sim/words.h"
#include "sim/world.h"

namespace holdfast::sim {
namespace {

constexpr Duration kPersonTakes = std::chrono::seconds(1);

}  // namespace

World::Index World::add_worker(agent::Process process, std::string node_id, Incarnation incarnation,
                               std::uint64_t attempt, bool spare) {
  Worker& worker = workers_.emplace_back();
  worker.process = process;
  worker.node_id = std::move(node_id);
  worker.incarnation = incarnation;
  worker.attempt = attempt;
  worker.disturbed = now_;
  worker.stage = Stage::kSpare;
  if (!spare) place(worker);
  return workers_.size() - 1;
}

// It knows which place it has and begins to ask for its rank.
void World::place(Worker& worker) {
  worker.stage = Stage::kUnplaced;
  worker.alone_since = now_;
  worker.machine.emplace(wire::Register{.job = "job",
                                        .node_id = worker.node_id,
                                        .incarnation = worker.incarnation,
                                        .attempt = worker.attempt,
                                        .host = "host",
                                        .pid = static_cast<std::int64_t>(worker.process)});
}

void World::tell_member(Index worker, const member::Event& event) {
  for (const auto& action : workers_[worker].machine->step(event)) carry_out(worker, action);
}

void World::carry_out(Index index, const member::Action& action) {
  Worker& worker = workers_[index];
  if (log_)
    tell(cat("    ", worker.node_id, " (process ", worker.process, "): ", to_words(action)));
  fold(action.index());
  if (const auto* send = std::get_if<member::Send>(&action)) {
    fold(print_of(send->message));
    if (worker.link != kNone) send_up(worker.link, send->message);
  } else if (const auto* placed = std::get_if<member::Place>(&action)) {
    if (worker.rank != kNoRank && worker.rank != placed->rank) {
      checkers_.violate("S1: a process was given another rank");
    }
    worker.rank = placed->rank;
    if (worker.stage == Stage::kUnplaced) worker.stage = Stage::kOpening;
  } else if (const auto* abort = std::get_if<member::Abort>(&action)) {
    const bool joined = worker.stage >= Stage::kJoining && worker.stage <= Stage::kUpdating;
    if (joined && worker.generation <= abort->generation) group(worker).aborted = true;
    worker.cancelled = std::max(worker.cancelled, abort->generation);
  } else if (const auto* mending = std::get_if<member::Mend>(&action)) {
    worker.repair = mending->repair;
    worker.stage = Stage::kMending;
  } else if (const auto* go_on = std::get_if<member::Go>(&action)) {
    worker.generation = go_on->generation;
    worker.version = go_on->version;
    worker.operation = 0;
    worker.stage = Stage::kGoing;
    checkers_.went(worker.rank, go_on->generation, go_on->version, arenas_);
  } else if (std::holds_alternative<member::Released>(action)) {
    worker.leaving = 0;
  } else if (const auto* up = std::get_if<member::GiveUp>(&action)) {
    worker.leaving = up->success ? 0 : 1;
  }
}

// `lifeline`: the agent hears of it first without an exit code. `loses`: what it sent last.
void World::die(Index index, std::int32_t code, bool lifeline, bool loses) {
  Worker& worker = workers_[index];
  worker.alive = false;
  worker.died_at = now_;
  if (worker.link != kNone) client_is_gone(worker.link, loses);
  worker.link = kNone;
  fold(static_cast<std::uint64_t>(code) + worker.process * 1000);
  if (setup_.agent) {
    agent_hears_of_death(worker.process, code, lifeline);
    return;
  }
  const bool another = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& other) {
    return other.alive && other.node_id == worker.node_id;
  });
  const bool ended = durable_ && durable_->ended;
  if (code == 0 || another || ended || !setup_.replaced || person_.left == 0) return;
  --person_.left;
  person_.workers.push_back({worker.node_id, now_ + kPersonTakes});
}

}  // namespace holdfast::sim
