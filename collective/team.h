// Team: some ranks that do things together over the generations.
//
// Beneath it is one Group per generation. That of all ranks is the CurrentGeneration's; another
// team's is formed by its first operation in each generation.
#pragma once

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

  // The team of all ranks of a world. What it starts goes into `queue`, whoever else uses that.
  static std::unique_ptr<Team> of_world(std::shared_ptr<CurrentGeneration> current,
                                        std::shared_ptr<Queue> queue, Rank me, int world_size);
  // That of `ranks` of a world, in their order; `prefix` tells apart the teams' folders of
  // different callers. Errors (kUser): a name or ranks that are impossible, or without `me`.
  static Result<std::unique_ptr<Team>> open(std::shared_ptr<CurrentGeneration> current, Rank me,
                                            int world_size, std::span<const Rank> ranks,
                                            std::string_view name, std::string_view prefix);
  ~Team();  // Ends what is under way.
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  [[nodiscard]] int rank() const { return members_.me; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.ranks.size()); }

  // Does it when what was started has ended. Errors: the group could not be formed.
  [[nodiscard]] Result<Verdict> run(const Body& body);
  [[nodiscard]] std::shared_ptr<Work> start(Body body);

  // The team of two in which `from` sends to `to` (ranks in this team) what has this tag, and
  // nothing else.
  [[nodiscard]] Team& pair(int from, int to, unsigned tag);

 private:
  struct Members {
    std::vector<Rank> ranks;  // In the order of the team's own ranks.
    int me = 0;               // This process's rank in the team.
    std::string name;         // Of its folder; empty: the world.
  };
  Team(std::shared_ptr<CurrentGeneration> current, Members members,
       std::shared_ptr<Queue> queue = std::make_shared<Queue>());
  [[nodiscard]] Result<Verdict> perform(const Body& body);
  // The group of the current generation; null: there is none.
  [[nodiscard]] Result<std::shared_ptr<Group>> enter(const CurrentGeneration::Now& now);
  // Null as well.
  [[nodiscard]] Result<std::shared_ptr<Group>> form(const CurrentGeneration::Now& now);
  [[nodiscard]] Layout layout_in(const Layout& world) const;

  std::shared_ptr<CurrentGeneration> current_;
  Members members_;
  std::mutex turn_;   // Held by whoever performs an operation.
  std::mutex mutex_;  // Of the next four; held for moments only.
  std::stop_source closing_;
  Generation generation_ = 0;                                          // That of group_.
  std::shared_ptr<Group> group_;                                       // Null: none has formed.
  std::optional<std::stop_callback<std::function<void()>>> on_abort_;  // Ends group_.
  std::mutex pairs_mutex_;
  std::map<std::tuple<int, int, unsigned>, std::unique_ptr<Team>> pairs_;
  std::shared_ptr<Queue> queue_;  // Last: its thread uses all above.
};

}  // namespace holdfast::collective
