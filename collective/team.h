// Team: some ranks that do collective operations together, over all generations.
//
// A team uses one Group per generation. The team of all ranks uses CurrentGeneration's group. Any
// other team forms its group at its first operation in each generation.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "collective/current_generation.h"
#include "collective/group.h"
#include "collective/queue.h"

namespace holdfast::collective {

// Any thread.
class Team {
 public:
  // An operation, done with the group of the current generation.
  using Body = std::function<Verdict(Group&)>;

  // The team of all ranks of a world. start() uses `queue`, which others may use as well.
  static std::unique_ptr<Team> of_world(std::shared_ptr<CurrentGeneration> current,
                                        std::shared_ptr<Queue> queue, Rank me, int world_size);
  // The team of `ranks` of a world, in their order. `prefix` begins the name of its folder, so that
  // the folders of different callers differ. Errors (kUser): an impossible name or list of ranks,
  // or one without `me`.
  static Result<std::unique_ptr<Team>> open(std::shared_ptr<CurrentGeneration> current, Rank me,
                                            int world_size, std::span<const Rank> ranks,
                                            std::string_view name, std::string_view prefix);
  ~Team();  // Ends what is under way.
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  [[nodiscard]] int rank() const { return members_.me; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.ranks.size()); }

  // Waits for all started operations, and then does this one. Error: the group could not be formed.
  [[nodiscard]] Result<Verdict> run(const Body& body);
  [[nodiscard]] std::shared_ptr<Work> start(Body body);

  // The team of two for sends with `tag` from rank `from` to rank `to` of this team.
  [[nodiscard]] Team& pair(int from, int to, unsigned tag);

 private:
  struct Members {
    std::vector<Rank> ranks;  // By rank in the team: the rank in the world.
    int me = 0;               // This process's rank in the team.
    std::string name;         // The name of the team's folder; empty: the team of the world.
  };
  Team(std::shared_ptr<CurrentGeneration> current, Members members,
       std::shared_ptr<Queue> queue = std::make_shared<Queue>());
  [[nodiscard]] Result<Verdict> perform(const Body& body);
  [[nodiscard]] std::shared_ptr<std::atomic<std::uint64_t>> waits() const;
  // The group of the current generation, formed if need be; null: there is none.
  [[nodiscard]] Result<std::shared_ptr<Group>> enter(const CurrentGeneration::Now& now);
  // Forms the group of the current generation; null: the generation or the team ended meanwhile.
  [[nodiscard]] Result<std::shared_ptr<Group>> form(const CurrentGeneration::Now& now);
  [[nodiscard]] Layout layout_in(const Layout& world) const;

  std::shared_ptr<CurrentGeneration> current_;
  Members members_;
  std::mutex turn_;   // Held by whoever performs an operation.
  std::mutex mutex_;  // Guards the next four; held for moments only.
  std::stop_source closing_;
  Generation generation_ = 0;                                          // The generation of group_.
  std::shared_ptr<Group> group_;                                       // Null: none has formed.
  std::optional<std::stop_callback<std::function<void()>>> on_abort_;  // Ends group_.
  std::mutex pairs_mutex_;
  std::map<std::tuple<int, int, unsigned>, std::unique_ptr<Team>> pairs_;
  std::shared_ptr<Queue> queue_;  // The last member: its thread uses all others.
};

}  // namespace holdfast::collective
