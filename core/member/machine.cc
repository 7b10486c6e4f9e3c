#include "core/member/machine.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace holdfast::member {
namespace {

template <class E>
constexpr std::size_t kEvent = event_index<Event, E>();

using S = State;
constexpr Transition<State> kTransitions[] = {
    {S::kStarting, kEvent<Parked>, S::kParked},
    {S::kParked, kEvent<Received>, S::kRepairing, "Assignment: an order to repair"},
    {S::kParked, kEvent<Received>, S::kTraining, "Assignment: its generation is running"},
    {S::kParked, kEvent<AddressesFound>, S::kTraining, "the same, and now it knows the others"},
    {S::kRepairing, kEvent<RepairDone>, S::kParked},
    {S::kTraining, kEvent<Parked>, S::kParked},
    {S::kTraining, kEvent<TrainingEnded>, S::kEnded},
    {S::kStarting, kEvent<TrainingEnded>, S::kEnded, "it never trained"},
    {S::kParked, kEvent<TrainingEnded>, S::kEnded},
    {S::kRepairing, kEvent<TrainingEnded>, S::kEnded},
};

}  // namespace

std::span<const Transition<State>> transitions() {
  return kTransitions;
}

const char* name(State state) {
  constexpr std::array<const char*, kStates> kNames = {"starting", "parked", "repairing",
                                                       "training", "ended"};
  return kNames[static_cast<std::size_t>(state)];
}

void Machine::enter(State next) {
  HF_ASSERT(next == state_ || is_listed<State>(kTransitions, state_, event_, next));
  state_ = next;
}

void Machine::send(wire::Message message) {
  // What is said while there is no connection is lost: after Register the scheduler asks again.
  if (connected_) actions_.push_back(Send{std::move(message)});
}

void Machine::on(const Connected& e) {
  connected_ = true;
  self_.endpoint = e.endpoint;
  greeted_ = settled_ = false;
  send(self_);
}

// On the next connection it is told anew.
void Machine::on(const Disconnected&) {
  connected_ = false;
  awaited_.reset();
}

void Machine::on(const wire::Assignment& m) {
  awaited_.reset();
  placed_ = true;
  if (m.addresses == 0) book_ = std::make_shared<AddressBook>();
  const bool knows = is_enough(*book_, m);
  if (knows) give_rank(m);
  if (!std::exchange(greeted_, true)) greet();
  // Whoever has missed the stop of a newer generation makes up for it first.
  if (m.stage == wire::Stage::kStopping || m.generation > stopped_for_) stop(m.generation);
  if (m.stage == wire::Stage::kRepairing && m.order.act != wire::Act::kKeep) repair(m);
  if (m.stage == wire::Stage::kRunning && knows) resume(m);
  if (!knows && (m.stage == wire::Stage::kRunning || !settled_)) await_addresses(m);
}

// All who train together have the same book. To be given a rank, one that has its place is enough:
// others may come and go meanwhile.
bool Machine::is_enough(const AddressBook& book, const wire::Assignment& m) const {
  if (book.name() == m.addresses) return true;
  const auto rank = static_cast<std::size_t>(m.rank);
  return m.stage != wire::Stage::kRunning && rank < book.places().size() &&
         book.places()[rank].endpoint == self_.endpoint;
}

// It stops and repairs without knowing where the others are, but trains with nobody.
void Machine::await_addresses(const wire::Assignment& m) {
  awaited_ = m;
  if (self_.attempt == 0) return send(wire::AskAddresses{});  // It has no agent.
  actions_.push_back(AwaitAddresses{});
}

void Machine::on(const wire::Addresses& m) {
  if (auto book = AddressBook::heard(m)) take(std::move(book));
}

void Machine::take(std::shared_ptr<const AddressBook> book) {
  if (!awaited_) return;
  book_ = std::move(book);
  if (!is_enough(*book_, *awaited_)) return;
  const wire::Assignment m = *std::exchange(awaited_, std::nullopt);
  give_rank(m);
  if (m.stage == wire::Stage::kRunning) resume(m);
}

void Machine::on(const AddressesOverdue&) {
  if (awaited_) send(wire::AskAddresses{});
}

void Machine::give_rank(const wire::Assignment& m) {
  if (std::exchange(settled_, true)) return;
  actions_.push_back(RankGiven{m.rank, m.world_size, m.run_id, book_});
}

// What was said on an older connection may be lost.
void Machine::greet() {
  if (failure_) send(wire::Failed{*failure_});
  if (state_ == State::kEnded) send(wire::Finished{running_, ended_at_});
}

void Machine::on(const wire::Refused& m) {
  if (m.reason.kind != wire::Reason::Kind::kNone) return give_up(false, m.reason);
  give_up(false, {.kind = wire::Reason::Kind::kRefusedAsBefore, .detail = m.sentence});
}

void Machine::on(const wire::Waiting& m) {
  if (!placed_) {
    // After each new connection it is told again of the same process, whose seconds began anew.
    const bool is_known = waits_for_ && waits_for_->kind == m.reason.kind &&
                          waits_for_->rank == m.reason.rank && waits_for_->pid == m.reason.pid &&
                          m.reason.kind == wire::Reason::Kind::kLeased;
    waits_for_ = m.reason;
    if (!is_known) actions_.push_back(Say{m.reason});
    return;
  }
  // Its place was given away while it was silent. The successor needs the arena: make room.
  wire::Reason reason = m.reason;
  reason.kind = wire::Reason::Kind::kReplacedSilent;
  give_up(false, std::move(reason));
}

void Machine::stop(Generation generation) {
  if (generation < stopped_for_ || generation <= running_) return;  // Nothing is left to stop.
  stopped_for_ = generation;
  if (state_ == State::kTraining) actions_.push_back(Abort{running_});
  if (state_ == State::kRepairing) actions_.push_back(StopRepair{});
  if (state_ == State::kParked) report();
}

void Machine::on(const Parked& e) {
  enter(State::kParked);
  holding_ = e.holding;
  if (stopped_for_ > running_) report();
}

void Machine::report() {
  send(wire::Report{stopped_for_, holding_.version, holding_.staged, holding_.private_is_own,
                    holding_.held});
}

void Machine::repair(const wire::Assignment& m) {
  if (m.generation != stopped_for_ || state_ != State::kParked) return;
  if (m.generation <= running_) return;
  if (repaired_for_ == m.generation) {  // The answer was lost with the connection.
    send(wire::Repaired{m.generation});
    return;
  }
  enter(State::kRepairing);
  repairing_for_ = m.generation;
  actions_.push_back(Repair{m.generation, m.version, m.order});
}

void Machine::on(const RepairDone& e) {
  enter(State::kParked);
  holding_ = e.holding;
  repaired_for_ = repairing_for_;
  if (repairing_for_ == stopped_for_) {
    send(wire::Repaired{repaired_for_});
  } else {
    report();
  }
}

void Machine::resume(const wire::Assignment& m) {
  if (state_ != State::kParked || m.generation != stopped_for_ || m.generation <= running_) return;
  if (m.version != holding_.version) {
    // It must never train from another version than the others: better no job than wrong bits.
    on(TrainingFailed{{.kind = wire::Reason::Kind::kWrongVersion,
                       .count = static_cast<std::int64_t>(m.version),
                       .version = holding_.version}});
    return;
  }
  running_ = m.generation;
  enter(State::kTraining);
  actions_.push_back(Go{m.generation, m.version, m.ended, book_});
}

void Machine::on(const Committed& e) {
  send(wire::Progress{running_, e.version, e.loss});
}

void Machine::on(const TrainingEnded& e) {
  enter(State::kEnded);
  ended_at_ = e.version;
  send(wire::Finished{running_, ended_at_});
}

void Machine::on(const TrainingFailed& e) {
  failure_ = e.reason;
  send(wire::Failed{*failure_});
}

void Machine::on(const wire::Farewell&) {
  if (state_ == State::kEnded) actions_.push_back(Released{});
}

void Machine::give_up(bool success, wire::Reason reason, bool job_ended) {
  if (std::exchange(over_, true)) return;
  actions_.push_back(Abort{std::max(stopped_for_, running_)});
  actions_.push_back(GiveUp{success, std::move(reason), success && stands_by(), job_ended});
}

// Somebody else lives in its place, or has ended that rank's training.
bool Machine::stands_by() const {
  using Kind = wire::Reason::Kind;
  return !placed_ && waits_for_ &&
         (waits_for_->kind == Kind::kLeased || waits_for_->kind == Kind::kRankHasEnded);
}

}  // namespace holdfast::member
