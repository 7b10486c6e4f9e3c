#include "runtime/agent/starting_spares.h"

#include <utility>
#include <vector>

#include "os/lifeline.h"
#include "os/process.h"
#include "runtime/agent/idle.h"

namespace holdfast::runtime {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(25);
constexpr std::uint64_t kMembersEvery = 10;  // Looks: on a large host this takes milliseconds.

}  // namespace

StartingSpares::StartingSpares(io::Loop& loop, int percent, bool may_be_idle,
                               std::function<void(agent::Process)> on_ready)
    : loop_(loop), percent_(percent), may_be_idle_(may_be_idle), on_ready_(std::move(on_ready)) {}

void StartingSpares::add(agent::Process process, pid_t group, const std::string& lifeline) {
  spares_.insert({process, {group, lifeline, agent::Share(io::Loop::now(), percent_), {group}}});
  if (!std::exchange(is_looking_, true)) loop_.after(kLookEvery, [this] { look(); });
}

void StartingSpares::forget(agent::Process process) {
  spares_.erase(process);
}

void StartingSpares::bound(Spare& spare) {
  std::uint64_t used = 0;
  for (const pid_t pid : spare.members) used += os::processor_time(pid);
  const bool did_compete = spare.share.competes();
  const bool competes =
      spare.share.look(io::Loop::now(), std::chrono::nanoseconds(static_cast<std::int64_t>(used)));
  if (competes == did_compete) return;
  for (const pid_t pid : spare.members) {
    competes ? make_process_ordinary(pid) : make_process_idle(pid);
  }
}

void StartingSpares::look() {
  std::vector<agent::Process> ready;
  const bool looks_for_members = looks_++ % kMembersEvery == 0;
  for (auto& [process, spare] : spares_) {
    if (os::lifeline_ready(spare.lifeline)) {
      if (may_be_idle_) make_group_idle(spare.group);
      ready.push_back(process);
    } else if (may_be_idle_ && percent_ > 0) {
      // Whoever is started later has the policy of whoever starts it.
      if (looks_for_members) spare.members = os::members_of(spare.group);
      bound(spare);
    }
  }
  for (const auto process : ready) spares_.erase(process);
  is_looking_ = !spares_.empty();
  if (is_looking_) loop_.after(kLookEvery, [this] { look(); });
  for (const auto process : ready) on_ready_(process);
}

}  // namespace holdfast::runtime
