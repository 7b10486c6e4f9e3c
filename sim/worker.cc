// Workers as processes: they start, connect, talk through their member machine, and die.
#include <algorithm>
#include <utility>

#include "base/prng.h"
#include "base/text.h"
#include "sim/words.h"
#include "sim/world.h"

namespace holdfast::sim {

namespace {

constexpr Duration kPersonTakes = std::chrono::seconds(1);
constexpr Duration kAddressesPatience = std::chrono::seconds(1);

}  // namespace

World::Index World::add_worker(agent::Process process, std::string node_id, Incarnation incarnation,
                               std::uint64_t attempt, bool spare, Index agent) {
  Worker& worker = workers_.emplace_back();
  worker.process = process;
  worker.agent = agent;
  worker.node_id = std::move(node_id);
  worker.incarnation = incarnation;
  worker.attempt = attempt;
  worker.disturbed = now_;
  worker.program = Program::kSpare;
  if (!spare) place(worker);
  return workers_.size() - 1;
}

void World::add_foreign(Index worker) {
  const Worker& here = workers_[worker];
  const std::uint64_t attempt = here.attempt == 0 ? 0 : here.attempt + 1;
  const Index index =
      add_worker(next_process_, here.node_id, derive(next_process_, 77U), attempt, /*spare=*/true);
  ++next_process_;
  workers_[index].attempt = attempt;
  workers_[index].foreign = true;
  place(workers_[index]);
}

// The worker knows its place now, and begins to ask for its rank.
void World::place(Worker& worker) {
  worker.program = Program::kUnplaced;
  worker.trainer.emplace(trainer_options());
  worker.gives_up_at = now_ + kAlonePatience;
  const std::string host = setup_.hosts ? cat("host-", worker.agent) : "host";
  worker.machine.emplace(wire::Register{.job = "job",
                                        .node_id = worker.node_id,
                                        .incarnation = worker.incarnation,
                                        .attempt = worker.attempt,
                                        .host = host,
                                        .pid = static_cast<std::int64_t>(worker.process),
                                        .memory = worker.foreign ? "elsewhere" : host});
  if (!setup_.asks) worker.leaving = 0;
}

std::string World::endpoint_of(const Worker& worker) const {
  return setup_.hosts ? cat("host-", worker.agent, ":", worker.process % 65'536 + 1) : "";
}

void World::tell_member(Index worker, const member::Event& event) {
  told_.push_back({worker, event});
  bring_events();
}

void World::tell_trainer(Index worker, const trainer::Event& event) {
  told_.push_back({worker, event});
  bring_events();
}

// The worker has tried to connect for too long. It tells its trainer, and goes on trying.
void World::miss_scheduler(Index index) {
  Worker& worker = workers_[index];
  worker.gives_up_at = now_ + kReplacementTimeout / 2;
  worker.cut_off = true;
  const bool trains = worker.program == Program::kTraining || worker.program == Program::kEnded;
  if (!trains) worker.leaving = 1;  // Its program waits in a call that fails now.
  tell_trainer(index, trainer::OutOfReach{{.kind = wire::Reason::Kind::kOutOfReach}});
}

void World::bring_events() {
  if (std::exchange(bringing_, true)) return;
  while (!told_.empty()) {
    const Told told = std::move(told_.front());
    told_.pop_front();
    Worker& worker = workers_[told.worker];
    if (const auto* event = std::get_if<member::Event>(&told.event)) {
      for (const auto& action : worker.machine->step(*event)) carry_out(told.worker, action);
    } else {
      const auto& trained = std::get<trainer::Event>(told.event);
      for (const auto& action : worker.trainer->step(now_, trained)) carry_out(told.worker, action);
    }
  }
  bringing_ = false;
}

void World::carry_out(Index index, const member::Action& action) {
  Worker& worker = workers_[index];
  if (log_)
    tell(cat("    ", worker.node_id, " (process ", worker.process, "): ", to_words(action)));
  fold(action.index());
  if (const auto* send = std::get_if<member::Send>(&action)) {
    fold(print_of(send->message));
    if (worker.link != kNone) send_up(worker.link, send->message);
  } else if (const auto* placed = std::get_if<member::RankGiven>(&action)) {
    if (worker.foreign) checkers_.violate("P31: a process of another host was given a rank");
    if (worker.rank != kNoRank && worker.rank != placed->rank) {
      checkers_.violate("S1: a process was given another rank");
    }
    worker.rank = placed->rank;
    if (worker.program == Program::kUnplaced) begin_exchange(index);
  } else if (const auto* assigned = std::get_if<Assigned>(&action)) {
    tell_trainer(index, *assigned);
  } else if (std::holds_alternative<member::AwaitAddresses>(action)) {
    worker.addresses_seen = 0;
    worker.addresses_due = now_ + kAddressesPatience;
  } else if (std::holds_alternative<member::Released>(action)) {
    tell_trainer(index, trainer::Released{});
  } else if (const auto* over = std::get_if<member::GiveUp>(&action)) {
    worker.over = true;
    if (over->job_ended) worker.job_ended = over->success;
    tell_trainer(index, trainer::JobOver{over->success, over->reason});
    // A program that trains learns of the end by its next call, or not at all.
    const bool stood_by = over->stood_by && worker.program == Program::kUnplaced;
    if (worker.program != Program::kTraining) worker.leaving = stood_by ? 0 : 1;
  }
}

// Lists looking at the addresses that the agent has written; the worker looks at each only once.
void World::list_addresses(Index index) {
  const Worker& worker = workers_[index];
  if (!worker.machine || !worker.machine->awaits_addresses()) return;
  const auto& left = agents_[worker.agent].addresses;
  if (left && left->name != worker.addresses_seen) {
    possible_.push_back({Kind::kAddressesFound, index});
  }
  if (worker.addresses_due && *worker.addresses_due <= now_) {
    possible_.push_back({Kind::kAddressesOverdue, index});
  }
}

void World::find_addresses(Index index) {
  const wire::Addresses& left = *agents_[workers_[index].agent].addresses;
  workers_[index].addresses_seen = left.name;
  auto book = AddressBook::heard(left);
  if (!book) return checkers_.violate("P54: an agent has left addresses that can not be");
  tell_member(index, member::AddressesFound{std::move(book)});
}

// `lifeline`: the agent learns of the death first by the lifeline, without an exit code. `loses`:
// the messages that the worker sent last are lost.
void World::die(Index index, std::int32_t code, bool lifeline, bool loses) {
  Worker& worker = workers_[index];
  worker.alive = false;
  worker.died_at = now_;
  if (worker.link != kNone) client_is_gone(worker.link, loses);
  worker.link = kNone;
  if (worker.exchange.link != kNone) client_is_gone(worker.exchange.link, loses);
  worker.exchange.link = kNone;
  fold(static_cast<std::uint64_t>(code) + worker.process * 1000);
  if (worker.foreign) return;  // No agent of this world is its parent.
  if (setup_.agent) {
    agent_hears_of_death(worker.agent, worker.process, code, lifeline, worker.job_ended);
    return;
  }
  const bool another = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& other) {
    return other.alive && !other.foreign && other.node_id == worker.node_id;
  });
  const bool ended = durable_ && durable_->stage == wire::Stage::kEnded;
  if (code == 0 || another || ended || !setup_.replaced || person_.left == 0) return;
  --person_.left;
  person_.workers.push_back({worker.node_id, now_ + kPersonTakes});
}

}  // namespace holdfast::sim
