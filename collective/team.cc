#include "collective/team.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/text.h"
#include "collective/waiting.h"
#include "os/folder.h"

namespace holdfast::collective {
namespace {

constexpr std::size_t kNameMax = 60;

}  // namespace

std::unique_ptr<Team> Team::of_world(std::shared_ptr<CurrentGeneration> current,
                                     std::shared_ptr<Queue> queue, Rank me, int world_size) {
  Members members{.ranks = {}, .me = me, .name = ""};
  for (Rank rank = 0; rank < world_size; ++rank) members.ranks.push_back(rank);
  return std::unique_ptr<Team>(new Team(std::move(current), std::move(members), std::move(queue)));
}

Result<std::unique_ptr<Team>> Team::open(std::shared_ptr<CurrentGeneration> current, Rank me,
                                         int world_size, std::span<const Rank> ranks,
                                         std::string_view name, std::string_view prefix) {
  const auto refuse = [](std::string what) { return Error{Blame::kUser, std::move(what)}; };
  if (name.empty() || name.size() > kNameMax || !is_plain_name(cat(prefix, name))) {
    return refuse(cat("a group's name is 1 to ", kNameMax, " letters, digits, '.', '_', '-', not '",
                      name, "'"));
  }
  for (const Rank rank : ranks) {
    if (rank >= 0 && rank < world_size) continue;
    return refuse(cat("group ", name, ": there is no rank ", rank, " in a world of ", world_size));
  }
  if (std::set(ranks.begin(), ranks.end()).size() != ranks.size()) {
    return refuse(cat("group ", name, " names a rank twice"));
  }
  const auto mine = std::find(ranks.begin(), ranks.end(), me);
  if (mine == ranks.end()) {
    return refuse(cat("rank ", me, " is not in group ", name, "; only its members open it"));
  }
  Members members{.ranks = {ranks.begin(), ranks.end()},
                  .me = static_cast<int>(mine - ranks.begin()),
                  .name = cat(prefix, name)};
  return std::unique_ptr<Team>(new Team(std::move(current), std::move(members)));
}

Team::Team(std::shared_ptr<CurrentGeneration> current, Members members,
           std::shared_ptr<Queue> queue)
    : current_(std::move(current)), members_(std::move(members)), queue_(std::move(queue)) {}

Team::~Team() {
  const bool idle = queue_->is_idle();
  std::shared_ptr<Group> group = members_.name.empty() ? current_->now().world : nullptr;
  {
    const std::lock_guard lock(mutex_);
    closing_.request_stop();
    if (group_) group = group_;
  }
  if (!idle && group) group->abort();
  if (members_.name.empty()) queue_->drain();  // The world's queue lives on after the team.
}

Result<Verdict> Team::run(const Body& body) {
  const Waiting waiting;
  const TeamWait wait(waits());
  queue_->drain();
  return perform(body);
}

std::shared_ptr<Work> Team::start(Body body) {
  return queue_->start([this, body = std::move(body)] { return perform(body); }, waits());
}

// Where to count who waits for this team.
std::shared_ptr<std::atomic<std::uint64_t>> Team::waits() const {
  return members_.name.empty() ? nullptr : current_->options().team_waits;
}

Result<Verdict> Team::perform(const Body& body) {
  const std::lock_guard turn(turn_);
  const CurrentGeneration::Now now = current_->now();
  const auto group = enter(now);
  if (!group) return group.error();
  if (!*group) {
    return Verdict{
        Outcome::kAborted,
        "there is no whole generation of this group now: collectives come between the begin of a "
        "step and its end, and after a fault the step is void"};
  }
  std::optional<RecordedGroup> recorded;
  if (now.recorded) recorded.emplace(**group, members_.name, *now.recorded);
  Verdict verdict = body(recorded ? *recorded : **group);
  const auto& ended = current_->options().team_operations;
  if (ended && !members_.name.empty()) ++*ended;
  return verdict;
}

Result<std::shared_ptr<Group>> Team::enter(const CurrentGeneration::Now& now) {
  if (members_.name.empty()) return now.world;
  {
    const std::lock_guard lock(mutex_);
    if (closing_.stop_requested()) return std::shared_ptr<Group>();
    if (group_ && generation_ == now.generation) return group_;
  }
  if (now.generation == 0 || now.aborted) return std::shared_ptr<Group>();
  return form(now);
}

// On which hosts the ranks of this team lie.
Layout Team::layout_in(const Layout& world) const {
  Layout mine{.host_of = {}, .domain_of = {}, .links = world.links};
  if (world.host_of.empty()) return mine;
  for (const Rank rank : members_.ranks) {
    mine.host_of.push_back(world.host_of.at(static_cast<std::size_t>(rank)));
  }
  return mine;
}

Result<std::shared_ptr<Group>> Team::form(const CurrentGeneration::Now& now) {
  std::shared_ptr<Group> old;  // Aborted, and destroyed, without the lock.
  {
    const std::lock_guard lock(mutex_);
    on_abort_.reset();
    old = std::move(group_);
  }
  if (old) old->abort();
  const CurrentGeneration::Options& job = current_->options();
  Group::Options options{.directory = cat(job.directory, "/", members_.name),
                         .generation = now.generation,
                         .run_id = job.run_id,
                         .rank = members_.me,
                         .world_size = size(),
                         .layout = layout_in(*now.layout),
                         .group = members_.name,
                         .world_ranks = members_.ranks};
  options.join_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(job.join_timeout);
  if (const auto made = os::Folder::make(options.directory); !made) return made.error();
  std::stop_source cancel;
  const auto end = [&cancel] { cancel.request_stop(); };
  const std::stop_callback by_abort(now.on_abort, end);
  const std::stop_callback by_close(closing_.get_token(), end);
  auto joined = current_->join(options, cancel.get_token());
  if (!joined) {
    const bool is_told = cancel.stop_requested() || current_->wait_for_abort(now.generation);
    return is_told ? Result(std::shared_ptr<Group>()) : joined.error();
  }
  const std::lock_guard lock(mutex_);
  generation_ = now.generation;
  group_ = *std::move(joined);
  on_abort_.emplace(now.on_abort, [group = group_] { group->abort(); });
  if (closing_.stop_requested()) group_->abort();
  return group_;
}

Team& Team::pair(int from, int to, unsigned tag) {
  const std::lock_guard lock(pairs_mutex_);
  auto& team = pairs_[{from, to, tag}];
  if (!team) {
    const auto global = [&](int k) { return members_.ranks[static_cast<std::size_t>(k)]; };
    team.reset(new Team(
        current_, Members{.ranks = {global(from), global(to)},
                          .me = members_.me == from ? 0 : 1,
                          .name = cat(members_.name.empty() ? "world" : members_.name, "+pair-",
                                      from, "-", to, tag == 0 ? "" : cat(".", tag))}));
  }
  return *team;
}

}  // namespace holdfast::collective
