// The main loop of a run: lists what could happen next, lets a choice decide, and checks the end.
#include "sim/world.h"

#include <algorithm>

#include "base/assert.h"
#include "base/text.h"
#include "sim/election_world.h"
#include "wire/codec.h"
#include "wording/reasons.h"

namespace holdfast::sim {
namespace {

constexpr Duration kTick = std::chrono::microseconds(100);  // The time that a transition takes.
constexpr Duration kBeat = std::chrono::seconds(1);
constexpr Duration kSilenceBound = std::chrono::seconds(300);  // From the last fault to the end.
constexpr Duration kEndBound = kAlonePatience + std::chrono::seconds(20);
constexpr std::uint32_t kTransitionsBound = 20'000;
constexpr std::uint32_t kTransitionsOfARank = 600;  // Raises the bound if there are many ranks.

}  // namespace

World::World(const Setup& setup, Choices& choices, std::vector<std::string>* log)
    : setup_(setup),
      choices_(choices),
      log_(log),
      checkers_(setup.ranks, setup.steps),
      faults_left_(setup.faults),
      arenas_(static_cast<std::size_t>(setup.ranks) *
              static_cast<std::size_t>(setup.hosts ? setup.agents + 2 : 1)) {}

// With hosts, heartbeats are more frequent: the scheduler notices a lost host by its agent's.
Duration World::beat_every() const {
  return setup_.hosts ? kBeat / 4 : kBeat;
}

void World::tell(const std::string& text) {
  if (log_) log_->push_back(text);
}

void World::tell(const Transition& transition) {
  const bool beats = transition.kind == Kind::kUp &&
                     links_[transition.index].up.front().kind == wire::kind_of(wire::Heartbeat{});
  if (!beats) tell(cat(now_.count() / 1000, " us: ", describe(transition)));
}

void World::start() {
  next_beat_ = beat_every();
  if (setup_.agent) {
    start_agents();
    return;
  }
  scheduler_.starting = true;
  for (Rank rank = 0; rank < setup_.ranks; ++rank) {
    add_worker(next_process_++, cat("w", rank), prng_.next(), 0, false);
  }
}

Outcome World::run() {
  const auto ranks = static_cast<std::uint32_t>(setup_.ranks);
  const std::uint32_t bound = std::max(kTransitionsBound, ranks * kTransitionsOfARank);
  start();
  while (checkers_.violation().empty() && !over()) {
    if (++transitions_ > bound || now_ > last_fault_ + kSilenceBound) {
      checkers_.violate("L1: the job neither ends nor fails");
      break;
    }
    if (now_ >= next_beat_) beat();
    list_transitions();
    if (maybe_fault()) continue;
    if (possible_.empty()) {
      if (!advance()) checkers_.violate("L1: nothing will ever happen again");
      continue;
    }
    put_in_order();
    const auto n = static_cast<std::uint32_t>(possible_.size());
    const std::uint32_t which =
        setup_.order_rarity == 0 ? 0 : choices_.pick(n, setup_.order_rarity);
    const Transition next = possible_[which];
    now_ += kTick;
    fold(static_cast<std::uint64_t>(next.kind) << 32 | next.agent << 24 | next.index);
    if (log_) tell(next);
    perform(next);
  }
  if (checkers_.violation().empty()) check_end();
  const bool ended = durable_ && durable_->stage == wire::Stage::kEnded;
  return {checkers_.violation(),
          why_ended(),
          setup_.agent ? why_ended_by_agents() == nullptr : ended && durable_->success,
          hash_,
          transitions_,
          setup_.faults - faults_left_,
          now_};
}

bool World::over() const {
  if (setup_.agent) return agents_have_exited();
  if (scheduler_.machine || scheduler_.starting || person_.scheduler || !person_.workers.empty()) {
    return false;
  }
  return std::none_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.alive; });
}

void World::list_network() {
  while (first_link_ < links_.size() && !links_[first_link_].scheduler_open &&
         !links_[first_link_].client_open) {
    ++first_link_;
  }
  for (Index i = first_link_; i < links_.size(); ++i) {
    const auto& link = links_[i];
    if (!flows(link)) continue;
    if (link.scheduler_open && scheduler_runs()) {
      if (!link.up.empty() && !link.closed_by_scheduler) {
        possible_.push_back({Kind::kUp, i});
      } else if (link.client_gone || link.closed_by_scheduler) {
        possible_.push_back({Kind::kSchedulerHears, i});
      }
    }
    if (!link.client_open) continue;
    if (link.worker == kNone ? !agents_[link.agent].runs() : !awake(workers_[link.worker]))
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
  const bool serves = scheduler_.machine.has_value();
  const bool runs = scheduler_runs();
  add(runs && !scheduler_.stores.empty(), Kind::kStoreDone, 0);
  add(runs && scheduler_.deadline && *scheduler_.deadline <= now_, Kind::kControllerTimer, 0);
  add(scheduler_.starting, Kind::kSchedulerStart, 0);
  add(runs && scheduler_.exits_at && *scheduler_.exits_at <= now_, Kind::kSchedulerExit, 0);
  add(serves && (scheduler_.signal == 9 || (runs && scheduler_.signal != 0)),
      Kind::kSchedulerSignal, 0);
  for (Index i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (!worker.alive) continue;
    add(worker.signal == 9, Kind::kSignal, i);
    if (worker.paused_until > now_) continue;
    add(worker.signal == 15, Kind::kSignal, i);
    const bool is_away = worker.agent != kNone && agents_[worker.agent].away_until > now_;
    add(serves && !is_away && worker.machine && worker.link == kNone && !worker.leaving &&
            !worker.over,
        Kind::kConnect, i);
    list_exchange(i);
    list_addresses(i);
    add(can_train(worker), Kind::kTrain, i);
    add(worker.sums_busy, Kind::kSumsIdle, i);
    add(worker.leaving.has_value(), Kind::kExit, i);
    const bool alone = !setup_.agent && worker.link == kNone && worker.machine && !serves;
    add(alone && !worker.leaving && worker.gives_up_at <= now_, Kind::kUnreachable, i);
  }
  list_agents();
  for (Index i = 0; i < person_.workers.size(); ++i) {
    add(person_.workers[i].at <= now_, Kind::kPersonWorker, i);
  }
  add(person_.scheduler, Kind::kPersonScheduler, 0);
  for (Index i = 0; runs && i < proofs_.size(); ++i) possible_.push_back({Kind::kProof, i});
  for (Index i = 0; runs && i < not_there_.size(); ++i) possible_.push_back({Kind::kNotThere, i});
}

void World::list_transitions() {
  possible_.clear();
  list_network();
  list_processes();
}

void World::put_in_order() {
  switch (setup_.order) {
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

void World::perform(const Transition& t) {
  switch (t.kind) {
    case Kind::kUp:
      return deliver_up(t.index);
    case Kind::kDown:
      return deliver_down(t.index);
    case Kind::kSchedulerHears:
      return scheduler_hears(t.index);
    case Kind::kClientHears:
      return client_hears(t.index);
    case Kind::kStoreDone:
      return store_done();
    case Kind::kControllerTimer:
      return controller_timer();
    case Kind::kSchedulerStart:
      return start_scheduler();
    case Kind::kSchedulerExit:
      return kill_scheduler(scheduler_.success ? 0 : 1, true);
    case Kind::kSchedulerSignal:
      return kill_scheduler(128 + scheduler_.signal, false);
    case Kind::kConnect:
      workers_[t.index].link = connect(t.index, kNone);
      return tell_member(t.index, member::Connected{endpoint_of(workers_[t.index])});
    case Kind::kAskConnect:
      return ask(t.index);
    case Kind::kAddressesFound:
      return find_addresses(t.index);
    case Kind::kAddressesOverdue:
      workers_[t.index].addresses_due.reset();
      return tell_member(t.index, member::AddressesOverdue{});
    case Kind::kTrain:
      return train(t.index);
    case Kind::kSumsIdle:
      return sums_end(t.index);
    case Kind::kExit:
      return die(t.index, *workers_[t.index].leaving, false, false);
    case Kind::kSignal:
      return die(t.index, 128 + workers_[t.index].signal, true, true);
    case Kind::kUnreachable:
      return miss_scheduler(t.index);
    case Kind::kPersonWorker: {
      const std::string node_id = person_.workers[t.index].node_id;
      person_.workers.erase(person_.workers.begin() + static_cast<std::ptrdiff_t>(t.index));
      add_worker(next_process_++, node_id, prng_.next(), 0, false);
      return;
    }
    case Kind::kPersonScheduler:
      person_.scheduler = false;
      scheduler_.starting = true;
      return;
    case Kind::kProof:
      return tell_controller(take(proofs_, t.index));
    case Kind::kNotThere:
      return tell_and_check_evictions(take(not_there_, t.index));
    case Kind::kAgentConnect:
    case Kind::kPromote:
    case Kind::kDied:
    case Kind::kSpawnFailed:
    case Kind::kLook:
    case Kind::kPauseOver:
    case Kind::kGrace:
    case Kind::kAgentAlone:
    case Kind::kRehearsalEnds:
      return perform_for_agent(t);
  }
}

std::optional<Instant> World::next_time() const {
  std::optional<Instant> next;
  const auto consider = [&](Instant at) {
    if (at > now_ && (!next || at < *next)) next = at;
  };
  if (scheduler_.machine) {
    consider(next_beat_);
    if (scheduler_.deadline) consider(*scheduler_.deadline);
    if (scheduler_.exits_at) consider(*scheduler_.exits_at);
    consider(scheduler_.paused_until);
  }
  for (const Worker& worker : workers_) {
    if (!worker.alive) continue;
    consider(worker.paused_until);
    if (const auto end = exchange_ends(worker)) consider(*end);
    if (worker.addresses_due) consider(*worker.addresses_due);
    if (worker.trainer && worker.trainer->deadline()) consider(*worker.trainer->deadline());
    if (!setup_.agent && worker.link == kNone) consider(worker.gives_up_at);
  }
  for (Index i = first_link_; i < links_.size(); ++i) consider(links_[i].stalled_until);
  for (const auto& agent : agents_) {
    if (!agent.runs()) continue;
    for (const Instant at : agent.graces) consider(at);
    for (const auto& pause : agent.pauses) consider(pause.until);
    if (agent.next_look) consider(*agent.next_look);
    if (agent.link == kNone) {
      consider(agent.connects_at);
      consider(agent.gives_up_at);
    }
    consider(agent.away_until);
  }
  for (const auto& errand : person_.workers) consider(errand.at);
  return next;
}

// If nothing can happen now, time goes on to the next moment at which something can.
bool World::advance() {
  const auto next = next_time();
  if (!next) return false;
  now_ = *next;
  fold(static_cast<std::uint64_t>(now_.count()));
  check_deaths_are_known();
  check_stopped_are_ended();
  const bool has_ended = durable_ && durable_->stage == wire::Stage::kEnded;
  if (has_ended && now_ > std::max(last_fault_, scheduler_.ended_at) + kEndBound) {
    checkers_.violate("L1: the job has ended but not its agents");
  }
  return true;
}

void World::beat() {
  while (next_beat_ <= now_) next_beat_ += beat_every();
  for (Index i = first_link_; i < links_.size(); ++i) {
    const auto& link = links_[i];
    if (!link.client_open || link.exchanges ||
        (link.worker != kNone && !awake(workers_[link.worker])))
      continue;
    send_up(i, wire::Heartbeat{});
  }
}

void World::check_end() {
  if (scheduler_.machine) checkers_.violate("L1: all is over but the scheduler runs on");
  for (const Worker& worker : workers_) {
    if (worker.alive && !worker.foreign) {
      checkers_.violate("L1: all is over but a process runs on");
    }
  }
  const bool ended = durable_ && durable_->stage == wire::Stage::kEnded;
  const bool success = setup_.agent ? why_ended_by_agents() == nullptr : ended && durable_->success;
  if (success) {
    // A program that exits early with code 0 counts as ended well, though it has not trained.
    if (setup_.asks && (struck_ & bit(Fault::kEarlyExit)) == 0) {
      checkers_.ended_well(arenas_in_use());
    }
    return;
  }
  if (!is_legitimate(why_ended())) {
    checkers_.violate(cat("L1: the job failed without need: ", wording::in_words(why_ended())));
  }
}

// Why the agents have failed. Null: all agents that live have exited with code 0.
const wire::Reason* World::why_ended_by_agents() const {
  for (const auto& agent : agents_) {
    if (agent.exited && agent.exited->code != 0) return &agent.exited->reason;
  }
  return nullptr;
}

wire::Reason World::why_ended() const {
  if (const auto* reason = why_ended_by_agents()) return *reason;
  return durable_ && durable_->stage == wire::Stage::kEnded ? durable_->end : wire::Reason{};
}

// Checks that a death is known to the scheduler at the latest when the lease has run out.
void World::check_deaths_are_known() {
  if (!scheduler_.machine || scheduler_.machine->stage() == wire::Stage::kEnded) return;
  if (!scheduler_.machine->assembled()) return;
  for (const Worker& worker : workers_) {
    if (worker.alive) continue;
    const auto* member = scheduler_.machine->find(worker.node_id);
    if (member == nullptr || member->seat.incarnation != worker.incarnation) continue;
    const bool believed = member->state == controller::SeatState::kHeld ||
                          member->state == controller::SeatState::kFinished;
    if (!believed) continue;
    const Instant since = std::max({worker.died_at, scheduler_.since, last_fault_});
    if (now_ > since + kLease + 2 * kBeat) {
      checkers_.violate(cat("L2: nobody knows that rank ", worker.rank, " is dead"));
    }
  }
}

Outcome simulate(const std::string& world, Choices& choices, std::vector<std::string>* log) {
  if (is_election(world)) return simulate_election(world, choices, log);
  const auto setup = draw_setup(world, choices);
  HF_ASSERT(setup.has_value());
  if (log) log->push_back(to_text(*setup));
  return World(*setup, choices, log).run();
}

}  // namespace holdfast::sim
