#include "collective/current_generation.h"

#include <algorithm>

namespace holdfast::collective {

std::stop_token CurrentGeneration::begin(Generation generation, Layout layout) {
  auto shared = std::make_shared<const Layout>(std::move(layout));
  std::shared_ptr<Group> old;  // Destroyed after the unlock: leaving a group may take a while.
  const std::lock_guard lock(mutex_);
  old = std::move(now_.world);
  ending_ = std::stop_source{};
  now_ = {.generation = generation,
          .recorded = nullptr,
          .world = nullptr,
          .aborted = false,
          .layout = std::move(shared),
          .on_abort = ending_.get_token()};
  if (is_aborted()) ending_.request_stop();
  return now_.on_abort;
}

void CurrentGeneration::formed(std::shared_ptr<Group> world) {
  std::shared_ptr<Group> old;  // Destroyed after the unlock, as in begin().
  const std::lock_guard lock(mutex_);
  old = std::exchange(now_.world, std::move(world));
  if (now_.world && is_aborted()) now_.world->abort();
}

Result<std::shared_ptr<Group>> CurrentGeneration::join(const Group::Options& options,
                                                       std::stop_token cancel) const {
  if (options_.played) return played_group(options, options_.played);
  auto joined = Group::join(options, std::move(cancel));
  if (!joined) return joined.error();
  return std::shared_ptr<Group>(*std::move(joined));
}

void CurrentGeneration::record_on(std::shared_ptr<Tape> tape) {
  const std::lock_guard lock(mutex_);
  now_.recorded = std::move(tape);
}

CurrentGeneration::Now CurrentGeneration::now() const {
  const std::lock_guard lock(mutex_);
  Now now = now_;
  now.aborted = is_aborted() || (now.world && now.world->aborted());
  return now;
}

void CurrentGeneration::abort(Generation generation) {
  const std::lock_guard lock(mutex_);
  aborted_ = std::max(aborted_, generation);
  was_aborted_.notify_all();
  if (!is_aborted()) return;
  ending_.request_stop();
  if (now_.world) now_.world->abort();
}

bool CurrentGeneration::wait_for_abort(Generation generation) {
  std::unique_lock lock(mutex_);
  return was_aborted_.wait_for(lock, options_.abort_patience,
                               [&] { return aborted_ >= generation; });
}

}  // namespace holdfast::collective
