#include "sim/worker.h"

#include <algorithm>
#include <utility>

#include "base/prng.h"
#include "base/text.h"
#include "sim/words.h"

namespace holdfast::sim {
namespace {

constexpr Duration kPersonTakes = std::chrono::seconds(1);
constexpr Duration kAddressesPatience = std::chrono::seconds(1);
// Longer than any run, so that an end which is never confirmed is found.
constexpr Duration kConfirmationTimeout = std::chrono::hours(1);
constexpr Duration kLinkPatience = std::chrono::milliseconds(300);

trainer::Options trainer_options(bool serves) {
  return {.serves = serves,
          .replacement_timeout = kReplacementTimeout,
          .link_patience = kLinkPatience,
          .forming_patience = kReplacementTimeout,
          .scheduler_timeout = kConfirmationTimeout,
          .progress_interval = Duration{}};
}

}  // namespace

Index Workers::add(agent::Process process, std::string node_id, Incarnation incarnation,
                   std::uint64_t attempt, bool spare, bool serves, Index agent) {
  Worker& worker = job_.workers.emplace_back();
  worker.process = process;
  worker.agent = agent;
  worker.node_id = std::move(node_id);
  worker.incarnation = incarnation;
  worker.attempt = attempt;
  worker.serves = serves;
  worker.disturbed = job_.now;
  worker.program = Program::kSpare;
  if (!spare) place(worker);
  return job_.workers.size() - 1;
}

void Workers::add_by_hand(const std::string& node_id) {
  (void)add(job_.next_process++, node_id, job_.prng.next(), 0, /*spare=*/false,
            is_servers(job_.setup, node_id));
}

void Workers::add_foreign(Index worker) {
  const Worker& here = job_.workers[worker];
  const std::uint64_t attempt = here.attempt == 0 ? 0 : here.attempt + 1;
  const Index index = add(job_.next_process, here.node_id, derive(job_.next_process, 77U), attempt,
                          /*spare=*/true, here.serves);
  ++job_.next_process;
  job_.workers[index].attempt = attempt;
  job_.workers[index].foreign = true;
  place(job_.workers[index]);
}

void Workers::place(Worker& worker) {
  worker.program = Program::kUnplaced;
  worker.trainer.emplace(trainer_options(worker.serves));
  worker.gives_up_at = job_.now + kAlonePatience;
  const std::string host = job_.setup.hosts ? cat("host-", worker.agent) : "host";
  worker.machine.emplace(wire::Register{.job = "job",
                                        .node_id = worker.node_id,
                                        .incarnation = worker.incarnation,
                                        .attempt = worker.attempt,
                                        .host = host,
                                        .pid = static_cast<std::int64_t>(worker.process),
                                        .memory = worker.foreign ? "elsewhere" : host,
                                        .serves = worker.serves});
  if (!job_.setup.asks) worker.leaving = 0;
}

std::string Workers::endpoint_of(const Worker& worker) const {
  return job_.setup.hosts ? cat("host-", worker.agent, ":", worker.process % 65'536 + 1) : "";
}

// The worker tells its trainer, and goes on trying.
void Workers::miss_scheduler(Index index) {
  Worker& worker = job_.workers[index];
  worker.gives_up_at = job_.now + kReplacementTimeout / 2;
  worker.cut_off = true;
  const bool trains = worker.program == Program::kTraining || worker.program == Program::kEnded;
  if (!trains) worker.leaving = 1;  // Its program waits in a call that fails now.
  events_.tell_trainer(index, trainer::OutOfReach{{.kind = wire::Reason::Kind::kOutOfReach}});
}

void Workers::carry_out(Index index, const member::Action& action) {
  Worker& worker = job_.workers[index];
  if (job_.log.is_wanted())
    job_.log.tell(
        cat("    ", worker.node_id, " (process ", worker.process, "): ", to_words(action)));
  job_.log.fold(action.index());
  if (const auto* send = std::get_if<member::Send>(&action)) {
    job_.log.fold(print_of(send->message));
    if (worker.link != kNone) connections_.send_up(worker.link, send->message);
  } else if (const auto* placed = std::get_if<member::RankGiven>(&action)) {
    if (worker.foreign) job_.checkers.violate("P31: a process of another host was given a rank");
    if (worker.rank != kNoRank && worker.rank != placed->rank) {
      job_.checkers.violate("S1: a process was given another rank");
    }
    worker.rank = placed->rank;
    if (worker.program == Program::kUnplaced) exchange_.begin(index);
  } else if (const auto* assigned = std::get_if<Assigned>(&action)) {
    events_.tell_trainer(index, *assigned);
  } else if (const auto* take = std::get_if<member::TakeSnapshot>(&action)) {
    events_.tell_trainer(index, trainer::SnapshotAsked{take->generation, take->version});
  } else if (std::holds_alternative<member::AwaitAddresses>(action)) {
    worker.addresses_seen = 0;
    worker.addresses_due = job_.now + kAddressesPatience;
  } else if (std::holds_alternative<member::Released>(action)) {
    events_.tell_trainer(index, trainer::Released{});
  } else if (const auto* over = std::get_if<member::GiveUp>(&action)) {
    worker.over = true;
    if (over->job_ended) worker.job_ended = over->success;
    events_.tell_trainer(index, trainer::JobOver{over->success, over->reason});
    // A program that trains learns of the end by its next call, or not at all.
    const bool stood_by = over->stood_by && worker.program == Program::kUnplaced;
    if (worker.program != Program::kTraining) worker.leaving = stood_by ? 0 : 1;
  }
}

// Lists looking at the addresses that the agent has written; the worker looks at each only once.
void Workers::list_addresses(Index index, std::vector<Transition>& possible) const {
  const Worker& worker = job_.workers[index];
  if (!worker.machine || !worker.machine->awaits_addresses()) return;
  const auto& left = job_.agents[worker.agent].addresses;
  if (left && left->name != worker.addresses_seen) {
    possible.push_back({Transition::Kind::kAddressesFound, index});
  }
  if (worker.addresses_due && *worker.addresses_due <= job_.now) {
    possible.push_back({Transition::Kind::kAddressesOverdue, index});
  }
}

void Workers::find_addresses(Index index) {
  const wire::Addresses& left = *job_.agents[job_.workers[index].agent].addresses;
  job_.workers[index].addresses_seen = left.name;
  auto book = AddressBook::heard(left);
  if (!book) return job_.checkers.violate("P54: an agent has left addresses that can not be");
  events_.tell_member(index, member::AddressesFound{std::move(book)});
}

void Workers::die(Index index, std::int32_t code, bool lifeline, bool loses) {
  Worker& worker = job_.workers[index];
  worker.alive = false;
  worker.died_at = job_.now;
  if (worker.link != kNone) connections_.client_is_gone(worker.link, loses);
  worker.link = kNone;
  if (worker.exchange.link != kNone) connections_.client_is_gone(worker.exchange.link, loses);
  worker.exchange.link = kNone;
  job_.log.fold(static_cast<std::uint64_t>(code) + worker.process * 1000);
  if (worker.foreign) return;  // No agent of this world is its parent.
  if (job_.setup.agent) {
    job_.agents[worker.agent].hear_of_death(worker.process, code, lifeline, worker.job_ended);
    return;
  }
  const bool another =
      std::any_of(job_.workers.begin(), job_.workers.end(), [&](const Worker& other) {
        return other.alive && !other.foreign && other.node_id == worker.node_id;
      });
  const bool ended = journal_.has_ended();
  if (code == 0 || another || ended || !job_.setup.replaced || job_.person.left == 0) return;
  --job_.person.left;
  job_.person.workers.push_back({worker.node_id, job_.now + kPersonTakes});
}

}  // namespace holdfast::sim
