#include "core/member/machine.h"

namespace holdfast::member {

void Machine::send(wire::Message message) {
  // Without a connection the message is dropped: after the next Register the scheduler asks again.
  if (connected_) actions_.push_back(Send{std::move(message)});
}

void Machine::on(const Connected& e) {
  connected_ = true;
  self_.endpoint = e.endpoint;
  greeted_ = settled_ = false;
  send(self_);
}

// The scheduler repeats the assignment on the next connection.
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
  const bool is_first = !std::exchange(greeted_, true);
  if (is_first && failure_) send(wire::Failed{*failure_});
  actions_.push_back(Assigned{m, is_first, knows ? book_ : nullptr});
  if (!knows && (m.stage == wire::Stage::kRunning || !settled_)) await_addresses(m);
}

// To train, a rank needs the very book that the assignment names: all who train together have the
// same one. To learn its rank, any book suffices that has this process in its place, because other
// ranks may come and go meanwhile.
bool Machine::is_enough(const AddressBook& book, const wire::Assignment& m) const {
  if (book.name() == m.addresses) return true;
  const auto rank = static_cast<std::size_t>(m.rank);
  return m.stage != wire::Stage::kRunning && rank < book.places().size() &&
         book.places()[rank].endpoint == self_.endpoint;
}

// Without the book a rank can stop and repair, but it can not train.
void Machine::await_addresses(const wire::Assignment& m) {
  awaited_ = m;
  if (self_.attempt == 0) return send(wire::AskAddresses{});  // No agent.
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
  if (m.stage == wire::Stage::kRunning) actions_.push_back(Assigned{m, false, book_});
}

void Machine::on(const AddressesOverdue&) {
  if (awaited_) send(wire::AskAddresses{});
}

void Machine::give_rank(const wire::Assignment& m) {
  if (std::exchange(settled_, true)) return;
  actions_.push_back(RankGiven{m.rank, m.world_size, m.run_id, book_});
}

void Machine::on(const wire::Refused& m) {
  if (m.reason.kind != wire::Reason::Kind::kNone) return give_up(false, m.reason);
  give_up(false, {.kind = wire::Reason::Kind::kRefusedAsBefore, .detail = m.sentence});
}

void Machine::on(const wire::Waiting& m) {
  if (!placed_) {
    // After each reconnection the scheduler repeats this, with the seconds of the lease counted
    // anew. The user hears of the same process once.
    const bool is_known = waits_for_ && waits_for_->kind == m.reason.kind &&
                          waits_for_->rank == m.reason.rank && waits_for_->pid == m.reason.pid &&
                          m.reason.kind == wire::Reason::Kind::kLeased;
    waits_for_ = m.reason;
    if (!is_known) actions_.push_back(Say{m.reason});
    return;
  }
  // This process was silent, and its place was given to a successor, which needs the arena.
  wire::Reason reason = m.reason;
  reason.kind = wire::Reason::Kind::kReplacedSilent;
  give_up(false, std::move(reason));
}

void Machine::on(const TrainingFailed& e) {
  failure_ = e.reason;
  send(wire::Failed{*failure_});
}

void Machine::give_up(bool success, wire::Reason reason, bool job_ended) {
  if (std::exchange(over_, true)) return;
  actions_.push_back(GiveUp{success, std::move(reason), success && stands_by(), job_ended});
}

// Whether it waits because another process has its place, or has ended that rank's training.
bool Machine::stands_by() const {
  using Kind = wire::Reason::Kind;
  return !placed_ && waits_for_ &&
         (waits_for_->kind == Kind::kLeased || waits_for_->kind == Kind::kRankHasEnded);
}

}  // namespace holdfast::member
