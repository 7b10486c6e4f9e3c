#include "collective/group.h"

#include <utility>

#include "collective/host_part.h"

namespace holdfast::collective {

Result<std::unique_ptr<Group>> Group::join(const Options& options, std::stop_token cancel) {
  auto part = HostPart::join(options, cancel);
  if (!part) return part.error();
  return std::unique_ptr<Group>(new Group(options, *std::move(part)));
}

Group::Group(const Options& options, std::unique_ptr<HostPart> part)
    : part_(std::move(part)), queue_(options.on_thread, options.on_failed) {}

Group::~Group() {
  if (!is_idle()) abort();
  leave();
}

// Call it before an operation that runs in the caller's own thread: operations run in the order of
// calls.
HostPart& Group::idle_part() {
  queue_.drain();
  return *part_;
}

int Group::rank() const {
  return part_->rank();
}
int Group::world_size() const {
  return part_->world_size();
}
std::span<std::byte> Group::registered() const {
  return part_->registered();
}

Outcome Group::all_reduce(Numbers to, const std::byte* from, Op op) {
  return idle_part().all_reduce(to, from, op);
}

Outcome Group::broadcast(std::span<std::byte> bytes, int root) {
  return idle_part().broadcast(bytes, root);
}

Outcome Group::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  return idle_part().all_gather(mine, all);
}

Outcome Group::barrier() {
  return idle_part().barrier();
}

Ticket Group::start_all_reduce(Numbers numbers) {
  // Nobody has to wake up for what can only fail.
  if (aborted() && is_idle()) return nullptr;
  return queue_.start([part = part_.get(), numbers] {
    return Verdict{part->all_reduce(numbers, numbers.data, Op::kSum), {}};
  });
}

Outcome Group::wait(const Ticket& ticket) {
  return ticket ? ticket->wait()->outcome : Outcome::kAborted;
}

void Group::drain() {
  queue_.drain();
}

bool Group::is_idle() const {
  return queue_.is_idle();
}

void Group::abort() {
  part_->abort();
}
bool Group::aborted() const {
  return part_->aborted();
}

void Group::leave() {
  idle_part().leave();
}

std::string Group::why() const {
  return part_->why();
}

}  // namespace holdfast::collective
