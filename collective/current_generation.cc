#include "collective/current_generation.h"

#include <algorithm>

#include "collective/team.h"

namespace holdfast::collective {

std::stop_token CurrentGeneration::begin(Generation generation, Layout layout) {
  auto shared = std::make_shared<const Layout>(std::move(layout));
  std::shared_ptr<Group> old;  // Ends after the lock: its thread may want it.
  const std::lock_guard lock(mutex_);
  old = std::move(now_.world);
  now_ = {
      .generation = generation, .world = nullptr, .aborted = false, .layout = std::move(shared)};
  forming_ = std::stop_source{};
  if (is_aborted()) forming_.request_stop();
  return forming_.get_token();
}

void CurrentGeneration::formed(std::shared_ptr<Group> world) {
  std::shared_ptr<Group> old;  // As above.
  const std::lock_guard lock(mutex_);
  old = std::exchange(now_.world, std::move(world));
  if (now_.world && is_aborted()) now_.world->abort();
}

CurrentGeneration::Now CurrentGeneration::now() const {
  const std::lock_guard lock(mutex_);
  Now now = now_;
  now.aborted = is_aborted() || (now.world && now.world->aborted());
  return now;
}

bool CurrentGeneration::abort(Generation generation) {
  const std::lock_guard lock(mutex_);
  aborted_ = std::max(aborted_, generation);
  for (Team* team : teams_) team->abort(generation);
  if (!is_aborted()) return true;
  forming_.request_stop();
  if (!now_.world) return true;
  now_.world->abort();
  return now_.world->is_idle();
}

void CurrentGeneration::enlist(Team& team) {
  const std::lock_guard lock(mutex_);
  teams_.insert(&team);
}

void CurrentGeneration::dismiss(Team& team) {
  const std::lock_guard lock(mutex_);
  teams_.erase(&team);
}

}  // namespace holdfast::collective
