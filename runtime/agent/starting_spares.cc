#include "runtime/agent/starting_spares.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "os/idle.h"
#include "os/lifeline.h"
#include "os/process.h"

namespace holdfast::runtime {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(25);
// Counted in looks. To find a group's members takes milliseconds on a large host.
constexpr std::uint64_t kMembersEvery = 10;

}  // namespace

StartingSpares::StartingSpares(io::Loop& loop, int percent, bool may_be_idle,
                               std::function<void(agent::Process)> on_ready)
    : loop_(loop), percent_(percent), may_be_idle_(may_be_idle), on_ready_(std::move(on_ready)) {}

void StartingSpares::add(agent::Process process, pid_t group, const std::string& lifeline) {
  spares_.insert(
      {process, {group, lifeline, agent::Share(io::Loop::now(), percent_), {{group, 0}}}});
  if (!std::exchange(is_looking_, true)) loop_.after(kLookEvery, [this] { look(); });
}

void StartingSpares::forget(agent::Process process) {
  spares_.erase(process);
}

void StartingSpares::find_members(Spare& spare) {
  std::map<pid_t, std::uint64_t> members;
  for (const pid_t pid : os::members_of(spare.group)) {
    const auto known = spare.members.find(pid);
    members[pid] = known == spare.members.end() ? 0 : known->second;
  }
  spare.members = std::move(members);
}

void StartingSpares::bound(Spare& spare, bool has_new_members) {
  std::uint64_t used = 0;
  // The pid of a member that has ended may name a process outside the group by now.
  std::erase_if(spare.members, [&](const auto& m) { return ::getpgid(m.first) != spare.group; });
  for (auto& [pid, before] : spare.members) {
    const std::uint64_t now = os::processor_time(pid);
    used += std::max(now, before) - before;
    before = now;
  }
  const bool did_compete = spare.share.competes();
  const bool competes =
      spare.share.look(io::Loop::now(), std::chrono::nanoseconds(static_cast<std::int64_t>(used)));
  if (competes == did_compete && !has_new_members) return;
  for (const auto& [pid, time] : spare.members) {
    competes ? os::make_process_ordinary(pid) : os::make_process_idle(pid);
  }
}

void StartingSpares::look() {
  std::vector<agent::Process> ready;
  const bool looks_for_members = looks_++ % kMembersEvery == 0;
  for (auto& [process, spare] : spares_) {
    if (os::lifeline_ready(spare.lifeline)) {
      if (may_be_idle_) os::make_group_idle(spare.group);
      ready.push_back(process);
    } else if (may_be_idle_ && percent_ > 0) {
      if (looks_for_members) find_members(spare);
      bound(spare, looks_for_members);
    }
  }
  for (const auto process : ready) spares_.erase(process);
  is_looking_ = !spares_.empty();
  if (is_looking_) loop_.after(kLookEvery, [this] { look(); });
  for (const auto process : ready) on_ready_(process);
}

}  // namespace holdfast::runtime
