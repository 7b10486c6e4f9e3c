#include "collective/group.h"

#include <utility>

#include "collective/member.h"
#include "collective/progress.h"

namespace holdfast::collective {

struct Group::Parts {
  explicit Parts(const Options& options) : progress(options.on_thread, options.on_failed) {}

  // Call it before an operation that runs in the caller's own thread: operations run in the order
  // of calls.
  Member& idle_member() {
    progress.drain();
    return *member;
  }

  std::unique_ptr<Member> member;
  Progress progress;  // Last: its thread uses the member.
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
  if (!parts_->progress.is_idle()) abort();
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

Outcome Group::all_reduce(Numbers numbers) {
  return parts_->idle_member().all_reduce(numbers);
}

Outcome Group::all_reduce_staged(Numbers numbers) {
  return parts_->idle_member().all_reduce_staged(numbers);
}

Outcome Group::all_reduce_staged(Numbers to, const std::byte* from) {
  return parts_->idle_member().all_reduce_staged(to, from);
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
  if (member->aborted() && parts_->progress.is_idle()) {
    return parts_->progress.start_ended(Outcome::kAborted);
  }
  return parts_->progress.start([member, numbers] {
    return member->is_registered(numbers) ? member->all_reduce(numbers)
                                          : member->all_reduce_staged(numbers);
  });
}

Outcome Group::wait(Ticket ticket) {
  return parts_->progress.wait(ticket);
}

bool Group::is_idle() const {
  return parts_->progress.is_idle();
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
