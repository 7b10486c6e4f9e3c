#include "collective/group.h"

#include <atomic>
#include <utility>

#include "collective/host_part.h"
#include "collective/queue.h"

namespace holdfast::collective {

namespace {

constexpr Ticket kNone{~std::uint64_t{0}};
constexpr Ticket kNeverBegun{0};  // Of an aborted group.

}  // namespace

struct Group::Parts {
  explicit Parts(const Options& options) : queue(options.on_thread, options.on_failed) {}

  // Call it before an operation that runs in the caller's own thread: operations run in the order
  // of calls.
  Member& idle_member() {
    queue.drain();
    return *member;
  }

  // Outcomes but kDone are final, so the first of them tells those of all that follow.
  void note(Ticket ticket, Outcome outcome) {
    if (outcome == Outcome::kDone || failed_from.load() != kNone) return;
    failure = outcome;
    failed_from = ticket;
  }
  [[nodiscard]] Outcome outcome_of(Ticket ticket) const {
    return ticket < failed_from.load() ? Outcome::kDone : failure;
  }

  std::unique_ptr<Member> member;
  std::uint64_t started = 0;
  std::atomic<Ticket> failed_from = kNone;
  Outcome failure = Outcome::kDone;  // Written once, before failed_from.
  Queue queue;                       // Last: its thread uses the member.
  bool left = false;
};

Result<std::unique_ptr<Group>> Group::join(const Options& options, std::stop_token cancel) {
  auto member = Member::join(options, cancel);
  if (!member) return member.error();
  auto parts = std::make_unique<Parts>(options);
  parts->member = *std::move(member);
  return std::unique_ptr<Group>(new Group(std::move(parts)));
}

Group::Group(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Group::~Group() {
  if (!parts_->queue.is_idle()) abort();
  leave();
}

int Group::rank() const {
  return parts_->member->rank();
}
int Group::world_size() const {
  return parts_->member->world_size();
}
std::span<std::byte> Group::registered() const {
  return parts_->member->registered();
}

Outcome Group::all_reduce(Numbers numbers, Op op) {
  return parts_->idle_member().all_reduce(numbers, op);
}

Outcome Group::all_reduce_staged(Numbers numbers, Op op) {
  return parts_->idle_member().all_reduce_staged(numbers, numbers.data, op);
}

Outcome Group::all_reduce_staged(Numbers to, const std::byte* from, Op op) {
  return parts_->idle_member().all_reduce_staged(to, from, op);
}

Outcome Group::all_reduce_into(Numbers to, const std::byte* from, Op op) {
  return parts_->idle_member().all_reduce_into(to, from, op);
}

Outcome Group::broadcast(std::span<std::byte> bytes, int root) {
  return parts_->idle_member().broadcast(bytes, root);
}

Outcome Group::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  return parts_->idle_member().all_gather(mine, all);
}

Outcome Group::barrier() {
  return parts_->idle_member().barrier();
}

Ticket Group::start_all_reduce(Numbers numbers) {
  Member* member = parts_->member.get();
  // Nobody has to wake up for what can only fail.
  if (member->aborted() && parts_->queue.is_idle()) {
    return kNeverBegun;
  }
  const Ticket ticket{++parts_->started};
  (void)parts_->queue.start([parts = parts_.get(), member, numbers, ticket] {
    const Outcome outcome = member->all_reduce_into(numbers, numbers.data, Op::kSum);
    parts->note(ticket, outcome);
    return Verdict{outcome, {}};
  });
  return ticket;
}

Outcome Group::wait(Ticket ticket) {
  if (ticket == kNeverBegun) return Outcome::kAborted;
  parts_->queue.wait(static_cast<std::uint64_t>(ticket));
  return parts_->outcome_of(ticket);
}

bool Group::is_idle() const {
  return parts_->queue.is_idle();
}

void Group::abort() {
  parts_->member->abort();
}
bool Group::aborted() const {
  return parts_->member->aborted();
}

void Group::leave() {
  if (std::exchange(parts_->left, true)) return;
  parts_->idle_member().leave();
}

std::string Group::why() const {
  return parts_->member->why();
}

}  // namespace holdfast::collective
