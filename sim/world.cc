#include "sim/world.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/prng.h"
#include "base/text.h"
#include "sim/election_world.h"
#include "wire/codec.h"
#include "wording/reasons.h"

namespace holdfast::sim {
namespace {

using Kind = Transition::Kind;

constexpr Duration kTick = std::chrono::microseconds(100);     // The time that a transition takes.
constexpr Duration kSilenceBound = std::chrono::seconds(300);  // From the last fault to the end.
constexpr Duration kEndBound = kAlonePatience + std::chrono::seconds(20);
constexpr std::uint32_t kTransitionsBound = 20'000;
constexpr std::uint32_t kTransitionsOfARank = 600;  // Raises the bound if there are many ranks.
constexpr std::uint64_t kFirstRun = 7;
constexpr Duration kAgentRetry = std::chrono::milliseconds(50);

}  // namespace

void World::start() {
  // Without --resume, the first run begins anew.
  if (job_.run_id > kFirstRun) journal_.begin(disk_.whole());
  if (job_.setup.agent) {
    agents_.start();
    return;
  }
  job_.scheduler.starting = true;
  for (Rank rank = 0; rank < job_.setup.ranks; ++rank) {
    workers_.add_by_hand(node_of(job_.setup, rank));
  }
}

Outcome World::run() {
  const auto ranks = static_cast<std::uint32_t>(job_.setup.ranks);
  const std::uint32_t bound = std::max(kTransitionsBound, ranks * kTransitionsOfARank);
  start();
  while (job_.checkers.violation().empty() && !over()) {
    if (++transitions_ > bound || job_.now > job_.last_fault + kSilenceBound) {
      job_.checkers.violate("L1: the job neither ends nor fails");
      break;
    }
    if (deadlines_.take_beat()) beat();
    list_transitions();
    if (faults_.maybe_strike(transitions_)) continue;
    if (possible_.empty()) {
      if (!advance()) job_.checkers.violate("L1: nothing will ever happen again");
      continue;
    }
    put_in_order();
    const auto n = static_cast<std::uint32_t>(possible_.size());
    const std::uint32_t which =
        job_.setup.order_rarity == 0 ? 0 : job_.choices.pick(n, job_.setup.order_rarity);
    const Transition next = possible_[which];
    job_.now += kTick;
    job_.log.fold(static_cast<std::uint64_t>(next.kind) << 32 | next.agent << 24 | next.index);
    if (job_.log.is_wanted()) tell(next);
    perform(next);
    if (journal_.take_load()) check_load();
  }
  if (job_.checkers.violation().empty() && !job_.is_cut_short) check_end();
  const bool ended = journal_.has_ended();
  return {
      job_.checkers.violation(),
      why_ended(),
      job_.setup.agent ? why_ended_by_agents() == nullptr : ended && journal_.formation()->success,
      job_.log.hash(),
      transitions_,
      job_.setup.faults - faults_.left(),
      disk_.named(),
      loads_,
      job_.is_cut_short,
      job_.now};
}

bool World::over() const {
  if (job_.is_cut_short) return true;
  if (job_.setup.agent) return agents_.have_exited();
  if (job_.scheduler.machine || job_.scheduler.starting || job_.person.scheduler ||
      !job_.person.workers.empty()) {
    return false;
  }
  return std::none_of(job_.workers.begin(), job_.workers.end(),
                      [](const Worker& w) { return w.alive; });
}

void World::list_network() {
  connections_.skip_closed();
  for (Index i = connections_.first_open(); i < job_.links.size(); ++i) {
    const auto& link = job_.links[i];
    if (!job_.flows(link)) continue;
    if (link.scheduler_open && job_.scheduler_runs()) {
      if (!link.up.empty() && !link.closed_by_scheduler) {
        possible_.push_back({Kind::kUp, i});
      } else if (link.client_gone || link.closed_by_scheduler) {
        possible_.push_back({Kind::kSchedulerHears, i});
      }
    }
    if (!link.client_open) continue;
    if (link.worker == kNone ? !job_.agents[link.agent].runs()
                             : !job_.awake(job_.workers[link.worker]))
      continue;
    if (!link.down.empty()) {
      possible_.push_back({Kind::kDown, i});
    } else if (link.scheduler_gone) {
      possible_.push_back({Kind::kClientHears, i});
    }
  }
}

void World::list_processes() {
  const auto add = [&](bool condition, Kind kind, Index index) {
    if (condition) possible_.push_back({kind, index});
  };
  writers_.list(possible_);
  const bool serves = job_.scheduler.machine.has_value();
  const bool runs = job_.scheduler_runs();
  add(runs && !job_.scheduler.stores.empty(), Kind::kStoreDone, 0);
  add(runs && job_.scheduler.deadline && *job_.scheduler.deadline <= job_.now,
      Kind::kControllerTimer, 0);
  add(job_.scheduler.starting, Kind::kSchedulerStart, 0);
  add(runs && job_.scheduler.exits_at && *job_.scheduler.exits_at <= job_.now, Kind::kSchedulerExit,
      0);
  add(serves && (job_.scheduler.signal == 9 || (runs && job_.scheduler.signal != 0)),
      Kind::kSchedulerSignal, 0);
  for (Index i = 0; i < job_.workers.size(); ++i) {
    const Worker& worker = job_.workers[i];
    if (!worker.alive) continue;
    add(worker.signal == 9, Kind::kSignal, i);
    if (worker.paused_until > job_.now) continue;
    add(worker.signal == 15, Kind::kSignal, i);
    const bool is_away = worker.agent != kNone && job_.agents[worker.agent].away_until > job_.now;
    add(serves && !is_away && worker.machine && worker.link == kNone && !worker.leaving &&
            !worker.over,
        Kind::kConnect, i);
    exchange_.list(i, possible_);
    workers_.list_addresses(i, possible_);
    add(training_.can_train(worker), Kind::kTrain, i);
    add(worker.sums_busy, Kind::kSumsIdle, i);
    add(worker.leaving.has_value(), Kind::kExit, i);
    const bool alone = !job_.setup.agent && worker.link == kNone && worker.machine && !serves;
    add(alone && !worker.leaving && worker.gives_up_at <= job_.now, Kind::kUnreachable, i);
  }
  agents_.list(possible_);
  for (Index i = 0; i < job_.person.workers.size(); ++i) {
    add(job_.person.workers[i].at <= job_.now, Kind::kPersonWorker, i);
  }
  add(job_.person.scheduler, Kind::kPersonScheduler, 0);
  add(runs && job_.is_paused() && job_.person.resumes_at <= job_.now, Kind::kPersonResumes, 0);
  for (Index i = 0; runs && i < scheduler_.proofs().size(); ++i) {
    possible_.push_back({Kind::kProof, i});
  }
  for (Index i = 0; runs && i < scheduler_.not_there().size(); ++i) {
    possible_.push_back({Kind::kNotThere, i});
  }
}

void World::list_transitions() {
  possible_.clear();
  list_network();
  list_processes();
}

void World::put_in_order() {
  switch (job_.setup.order) {
    case Order::kMessagesFirst:
      break;
    case Order::kTrainersFirst:
      other_.clear();
      for (const auto& t : possible_) {
        if (t.kind == Kind::kTrain) other_.push_back(t);
      }
      for (const auto& t : possible_) {
        if (t.kind != Kind::kTrain) other_.push_back(t);
      }
      possible_.swap(other_);
      break;
    case Order::kInTurn: {
      const auto by = static_cast<std::ptrdiff_t>(transitions_ % possible_.size());
      std::rotate(possible_.begin(), possible_.begin() + by, possible_.end());
      break;
    }
    case Order::kNewestFirst:
      std::reverse(possible_.begin(), possible_.end());
      break;
  }
}

void World::tell(const Transition& transition) {
  const bool beats = transition.kind == Kind::kUp && job_.links[transition.index].up.front().kind ==
                                                         wire::kind_of(wire::Heartbeat{});
  if (!beats) {
    job_.log.tell(cat(job_.now.count() / 1000, " us: ", narrator_.describe(transition)));
  }
}

void World::perform(const Transition& t) {
  switch (t.kind) {
    case Kind::kUp:
      return scheduler_.deliver_up(t.index);
    case Kind::kDown:
      return deliver_down(t.index);
    case Kind::kSchedulerHears:
      return scheduler_.hear_end(t.index);
    case Kind::kClientHears:
      return client_hears(t.index);
    case Kind::kStoreDone:
      return scheduler_.store_done();
    case Kind::kControllerTimer:
      return scheduler_.timer();
    case Kind::kSchedulerStart:
      return scheduler_.start();
    case Kind::kSchedulerExit:
      return scheduler_.kill(job_.scheduler.success ? 0 : 1, true);
    case Kind::kSchedulerSignal:
      return scheduler_.kill(128 + job_.scheduler.signal, false);
    case Kind::kConnect:
      job_.workers[t.index].link = scheduler_.connect(t.index, kNone);
      return events_.tell_member(t.index,
                                 member::Connected{workers_.endpoint_of(job_.workers[t.index])});
    case Kind::kAskConnect:
      return exchange_.ask(t.index);
    case Kind::kAddressesFound:
      return workers_.find_addresses(t.index);
    case Kind::kAddressesOverdue:
      job_.workers[t.index].addresses_due.reset();
      return events_.tell_member(t.index, member::AddressesOverdue{});
    case Kind::kTrain:
      return training_.train(t.index);
    case Kind::kSumsIdle:
      return training_.sums_end(t.index);
    case Kind::kExit:
      return workers_.die(t.index, *job_.workers[t.index].leaving, false, false);
    case Kind::kSignal:
      return workers_.die(t.index, 128 + job_.workers[t.index].signal, true, true);
    case Kind::kUnreachable:
      return workers_.miss_scheduler(t.index);
    case Kind::kPersonWorker: {
      const std::string node_id = job_.person.workers[t.index].node_id;
      job_.person.workers.erase(job_.person.workers.begin() + static_cast<std::ptrdiff_t>(t.index));
      return workers_.add_by_hand(node_id);
    }
    case Kind::kPersonScheduler:
      job_.person.scheduler = false;
      job_.scheduler.starting = true;
      return;
    case Kind::kPersonResumes:
      check_pause();
      return scheduler_.order(wire::Pause{});
    case Kind::kProof:
      return scheduler_.hear_proof(t.index);
    case Kind::kNotThere:
      return scheduler_.hear_not_there(t.index);
    case Kind::kAgentConnect:
    case Kind::kPromote:
    case Kind::kDied:
    case Kind::kSpawnFailed:
    case Kind::kLook:
    case Kind::kPauseOver:
    case Kind::kGrace:
    case Kind::kAgentAlone:
    case Kind::kRehearsalEnds:
    case Kind::kSnapshotDone:
      return agents_.perform(t);
  }
}

// If nothing can happen now, time goes on to the next moment at which something can.
bool World::advance() {
  const auto next = deadlines_.next();
  if (!next) return false;
  job_.now = *next;
  job_.log.fold(static_cast<std::uint64_t>(job_.now.count()));
  check_deaths_are_known();
  agents_.check_stopped_are_ended();
  const bool has_ended = journal_.has_ended();
  if (has_ended && job_.now > std::max(job_.last_fault, job_.scheduler.ended_at) + kEndBound) {
    job_.checkers.violate("L1: the job has ended but not its agents");
  }
  return true;
}

void World::beat() {
  for (Index i = connections_.first_open(); i < job_.links.size(); ++i) {
    const auto& link = job_.links[i];
    if (!link.client_open || link.exchanges ||
        (link.worker != kNone && !job_.awake(job_.workers[link.worker])))
      continue;
    connections_.send_up(i, wire::Heartbeat{});
  }
}

void World::check_end() {
  if (job_.scheduler.machine) job_.checkers.violate("L1: all is over but the scheduler runs on");
  for (const Worker& worker : job_.workers) {
    if (worker.alive && !worker.foreign) {
      job_.checkers.violate("L1: all is over but a process runs on");
    }
  }
  const bool ended = journal_.has_ended();
  const bool success =
      job_.setup.agent ? why_ended_by_agents() == nullptr : ended && journal_.formation()->success;
  if (success) {
    // A program that exits early with code 0 counts as ended well, though it has not trained.
    if (job_.setup.asks && !job_.had(Fault::kEarlyExit)) {
      auto arenas = memory_.arenas_in_use();
      // Once all workers have ended, nobody asks for the rows of servers any more.
      arenas.resize(static_cast<std::size_t>(job_.setup.workers()));
      job_.checkers.ended_well(arenas);
    }
    return;
  }
  if (!faults_.justify(why_ended())) {
    job_.checkers.violate(cat("L1: the job failed without need: ", wording::in_words(why_ended())));
  }
}

void World::check_load() {
  ++loads_;
  if (!faults_.justify_load()) {
    job_.checkers.violate("S3: a snapshot is loaded though no version was lost");
  }
  journal_.set_loaded();
}

// Checks that a job to which nothing else has happened stands still after a second.
void World::check_pause() {
  const controller::Machine& machine = *job_.scheduler.machine;
  const bool is_calm = job_.struck == bit(Fault::kPauseJob) && !journal_.any_finished() &&
                       machine.stage() == wire::Stage::kRunning;
  const bool is_long = job_.now >= job_.person.paused_at + std::chrono::seconds(1);
  if (is_calm && is_long && !machine.stands_still()) {
    job_.checkers.violate("P64: a job that is paused does not stand still");
  }
}

// Why the agents have failed. Null: all agents that live have exited with code 0.
const wire::Reason* World::why_ended_by_agents() const {
  for (const auto& agent : job_.agents) {
    if (agent.exited && agent.exited->code != 0) return &agent.exited->reason;
  }
  return nullptr;
}

wire::Reason World::why_ended() const {
  if (const auto* reason = why_ended_by_agents()) return *reason;
  return journal_.has_ended() ? journal_.formation()->end : wire::Reason{};
}

// Checks that a death is known to the scheduler at the latest when the lease has run out. A process
// that has died while it waited for a place has its lease from when it is given one.
void World::check_deaths_are_known() {
  if (!job_.scheduler.machine || job_.scheduler.machine->stage() == wire::Stage::kEnded) return;
  if (!job_.scheduler.machine->assembled()) return;
  for (const Worker& worker : job_.workers) {
    const auto* member = job_.scheduler.machine->find(worker.node_id);
    if (member == nullptr || member->seat.incarnation != worker.incarnation) continue;
    const bool believed = member->state == controller::SeatState::kHeld ||
                          member->state == controller::SeatState::kFinished;
    const Instant seated = seated_.try_emplace(worker.incarnation, job_.now).first->second;
    if (worker.alive || !believed) continue;
    const Instant since = std::max({worker.died_at, job_.scheduler.since, job_.last_fault, seated});
    if (job_.now > since + kLease + 2 * kBeat) {
      job_.checkers.violate(cat("L2: nobody knows that rank ", worker.rank, " is dead"));
    }
  }
}

void World::deliver(const WorkerEvents::Told& told) {
  Worker& worker = job_.workers[told.worker];
  if (const auto* event = std::get_if<member::Event>(&told.event)) {
    for (const auto& action : worker.machine->step(*event)) {
      workers_.carry_out(told.worker, action);
    }
    return;
  }
  const auto& event = std::get<trainer::Event>(told.event);
  for (const auto& action : worker.trainer->step(job_.now, event)) {
    training_.carry_out(told.worker, action);
  }
}

void World::deliver_down(Index link) {
  auto heard = connections_.take_down(link);
  if (!heard) return;
  wire::Message& message = *heard;
  if (job_.links[link].worker == kNone) {
    agents_.tell(job_.links[link].agent, agent::Received{std::move(message)});
  } else if (job_.links[link].exchanges) {
    exchange_.hear(job_.links[link].worker, message);
  } else {
    const Index worker = job_.links[link].worker;
    const bool was_cut_off = std::exchange(job_.workers[worker].cut_off, false);
    if (was_cut_off) events_.tell_trainer(worker, trainer::InReach{});
    events_.tell_member(worker, member::Received{std::move(message)});
  }
}

void World::client_hears(Index link) {
  job_.links[link].client_open = false;
  if (const Index index = job_.links[link].agent; job_.links[link].worker == kNone) {
    job_.agents[index].link = kNone;
    job_.agents[index].connects_at = job_.now + kAgentRetry;
    job_.agents[index].gives_up_at = job_.now + kAlonePatience;
    agents_.tell(index, agent::LinkDown{});
    return;
  }
  Worker& worker = job_.workers[job_.links[link].worker];
  if (job_.links[link].exchanges) {
    worker.exchange.link = kNone;
    return;
  }
  worker.link = kNone;
  worker.gives_up_at = job_.now + kAlonePatience;
  events_.tell_member(job_.links[link].worker, member::Disconnected{});
}

Outcome simulate(const std::string& world, Choices& choices, std::vector<std::string>* log) {
  if (is_election(world)) return simulate_election(world, choices, log);
  const auto setup = draw_setup(world, choices);
  HF_ASSERT(setup.has_value());
  if (log) log->push_back(to_text(*setup));
  Disk disk;
  Setup left = *setup;
  Outcome all;
  // After each power cut, another run begins with the snapshots on the disk.
  for (std::uint64_t run_id = kFirstRun;; ++run_id) {
    Outcome run = World(left, run_id, disk, choices, log).run();
    left.faults -= run.faults;
    run.hash = derive(all.hash, run.hash);
    run.transitions += all.transitions;
    run.faults += all.faults;
    run.loads += all.loads;
    run.time += all.time;
    all = std::move(run);
    if (!all.is_cut_short || !all.violation.empty()) return all;
  }
}

}  // namespace holdfast::sim
