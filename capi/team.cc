#include "capi/team.h"

#include <chrono>
#include <filesystem>
#include <system_error>

#include "base/text.h"
#include "capi/era.h"
#include "capi/operations.h"

namespace holdfast::capi {
namespace {

using collective::Group;

// Large enough that a barrier per piece does not count.
constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

Verdict no_generation() {
  return {HF_ABORTED,
          "there is no whole generation of this group now: collectives come between "
          "hf_begin_step() and hf_end_step(), and after a fault the step is void"};
}

Status make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directory(path, error);  // The job's directory above is 0700.
  if (!error) return {};
  return Error{Blame::kWorld, cat("cannot make ", path, ": ", error.message())};
}

}  // namespace

Team::Team(std::shared_ptr<Era> era, Members members)
    : era_(std::move(era)), members_(std::move(members)) {
  era_->enlist(*this);
}

Team::~Team() {
  era_->dismiss(*this);
  const bool idle = queue_.is_idle();
  std::shared_ptr<Group> group = members_.name.empty() ? era_->now().world : nullptr;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    stop_.request_stop();
    if (formed_.group) group = formed_.group;
  }
  if (!idle && group) group->abort();
}

Verdict Team::run(const GroupOperation& operation) {
  queue_.drain();
  return perform(operation);
}

std::shared_ptr<Work> Team::start(GroupOperation operation) {
  return queue_.start([this, operation = std::move(operation)] { return perform(operation); });
}

Verdict Team::perform(const GroupOperation& operation) {
  const std::lock_guard turn(turn_);
  std::shared_ptr<Group> group;
  if (Verdict entered = enter(group); entered.status != HF_OK) return entered;
  return operation(*group);
}

Verdict Team::enter(std::shared_ptr<Group>& group) {
  const Era::Now now = era_->now();
  if (members_.name.empty()) {
    group = now.world;
    return group ? Verdict{} : no_generation();
  }
  bool standing = false;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return no_generation();
    standing = formed_.group && formed_.generation == now.generation;
  }
  if (!standing) {
    if (now.generation == 0 || now.aborted) return no_generation();
    if (Verdict formed = form(now.generation); formed.status != HF_OK) return formed;
  }
  const std::lock_guard lock(mutex_);
  group = formed_.group;
  return {};
}

Verdict Team::form(Generation generation) {
  std::stop_token cancel;
  std::shared_ptr<Group> old;  // Aborted before; ends outside of the lock.
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return no_generation();
    old = std::move(formed_.group);
    forming_ = generation;
    stop_ = std::stop_source{};
    cancel = stop_.get_token();
  }
  if (old) old->abort();
  if (era_->now().aborted) return no_generation();  // It came before there was something to stop.
  const Era::Place& place = era_->place();
  Group::Options options{.directory = cat(place.directory, "/", members_.name),
                         .generation = generation,
                         .run_id = place.run_id,
                         .rank = members_.me,
                         .world_size = size(),
                         .staging_bytes = kStagingBytes};
  options.join_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(place.join_timeout);
  if (const Status made = make_folder(options.directory); !made) return verdict_of(made.error());
  auto joined = Group::join(options, cancel);
  if (!joined) {
    if (cancel.stop_requested() || place.wait_for_abort(generation)) return no_generation();
    return verdict_of(joined.error());
  }
  const std::lock_guard lock(mutex_);
  formed_ = {*std::move(joined), generation};
  if (cancel.stop_requested()) formed_.group->abort();
  return {};
}

Team& Team::pair(int from, int to, unsigned tag) {
  const std::lock_guard lock(pairs_mutex_);
  auto& team = pairs_[{from, to, tag}];
  if (!team) {
    const auto global = [&](int k) { return members_.ranks[static_cast<std::size_t>(k)]; };
    team = std::make_unique<Team>(
        era_, Members{.ranks = {global(from), global(to)},
                      .me = members_.me == from ? 0 : 1,
                      .name = cat(members_.name.empty() ? "world" : members_.name, ".pair-", from,
                                  "-", to, tag == 0 ? "" : cat(".", tag))});
  }
  return *team;
}

void Team::abort(Generation generation) {
  const std::lock_guard lock(mutex_);
  if (forming_ > generation) return;
  stop_.request_stop();
  if (formed_.group) formed_.group->abort();
}

}  // namespace holdfast::capi
