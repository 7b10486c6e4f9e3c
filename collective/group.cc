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
  HostPart& idle_part() {
    queue.drain();
    return *part;
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

  std::unique_ptr<HostPart> part;
  std::uint64_t started = 0;
  std::atomic<Ticket> failed_from = kNone;
  Outcome failure = Outcome::kDone;  // Written once, before failed_from.
  Queue queue;                       // Last: its thread uses the part.
  bool left = false;
};

Result<std::unique_ptr<Group>> Group::join(const Options& options, std::stop_token cancel) {
  auto part = HostPart::join(options, cancel);
  if (!part) return part.error();
  auto parts = std::make_unique<Parts>(options);
  parts->part = *std::move(part);
  return std::unique_ptr<Group>(new Group(std::move(parts)));
}

Group::Group(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Group::~Group() {
  if (!parts_->queue.is_idle()) abort();
  leave();
}

int Group::rank() const {
  return parts_->part->rank();
}
int Group::world_size() const {
  return parts_->part->world_size();
}
std::span<std::byte> Group::registered() const {
  return parts_->part->registered();
}

Outcome Group::all_reduce(Numbers numbers, Op op) {
  return parts_->idle_part().all_reduce(numbers, op);
}

Outcome Group::all_reduce_anywhere(Numbers numbers, Op op) {
  return parts_->idle_part().all_reduce_anywhere(numbers, numbers.data, op);
}

Outcome Group::all_reduce_anywhere(Numbers to, const std::byte* from, Op op) {
  return parts_->idle_part().all_reduce_anywhere(to, from, op);
}

Outcome Group::all_reduce_into(Numbers to, const std::byte* from, Op op) {
  return parts_->idle_part().all_reduce_into(to, from, op);
}

Outcome Group::broadcast(std::span<std::byte> bytes, int root) {
  return parts_->idle_part().broadcast(bytes, root);
}

Outcome Group::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  return parts_->idle_part().all_gather(mine, all);
}

Outcome Group::barrier() {
  return parts_->idle_part().barrier();
}

Ticket Group::start_all_reduce(Numbers numbers) {
  HostPart* part = parts_->part.get();
  // Nobody has to wake up for what can only fail.
  if (part->aborted() && parts_->queue.is_idle()) {
    return kNeverBegun;
  }
  const Ticket ticket{++parts_->started};
  (void)parts_->queue.start([parts = parts_.get(), part, numbers, ticket] {
    const Outcome outcome = part->all_reduce_into(numbers, numbers.data, Op::kSum);
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
  parts_->part->abort();
}
bool Group::aborted() const {
  return parts_->part->aborted();
}

void Group::leave() {
  if (std::exchange(parts_->left, true)) return;
  parts_->idle_part().leave();
}

std::string Group::why() const {
  return parts_->part->why();
}

}  // namespace holdfast::collective
