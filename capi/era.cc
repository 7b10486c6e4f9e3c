#include "capi/era.h"

#include <algorithm>
#include <utility>

#include "capi/team.h"

namespace holdfast::capi {

void Era::turn(Generation generation, std::shared_ptr<collective::Group> world) {
  std::shared_ptr<collective::Group> old;  // Ends outside of the lock.
  const std::lock_guard lock(mutex_);
  old = std::exchange(now_.world, std::move(world));
  now_.generation = generation;
}

Era::Now Era::now() {
  const std::lock_guard lock(mutex_);
  Now now = now_;
  now.aborted = aborted_ >= now.generation || (now.world && now.world->aborted());
  return now;
}

void Era::abort(Generation generation) {
  const std::lock_guard lock(mutex_);
  aborted_ = std::max(aborted_, generation);
  for (Team* team : teams_) team->abort(generation);
}

void Era::enlist(Team& team) {
  const std::lock_guard lock(mutex_);
  teams_.insert(&team);
}

void Era::dismiss(Team& team) {
  const std::lock_guard lock(mutex_);
  teams_.erase(&team);
}

}  // namespace holdfast::capi
