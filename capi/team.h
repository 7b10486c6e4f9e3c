// Team: some ranks that do things together over the generations; what an hf_group stands for.
//
// Beneath it is one collective::Group per generation. That of the world is the Session's; those of
// other teams are formed by their first operation in each generation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <tuple>
#include <vector>

#include "capi/error.h"
#include "capi/queue.h"
#include "collective/group.h"

namespace holdfast::capi {

class Era;

class Team {
 public:
  struct Members {
    std::vector<Rank> ranks;  // In the order of the team's own ranks.
    int me = 0;               // This process's place in `ranks`.
    std::string name;         // Of its folder; empty: the world.
  };
  using GroupOperation = std::function<Verdict(collective::Group&)>;

  Team(std::shared_ptr<Era> era, Members members);
  ~Team();  // Ends what is under way.
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  [[nodiscard]] int rank() const { return members_.me; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.ranks.size()); }

  // After what was started has ended.
  [[nodiscard]] Verdict run(const GroupOperation& operation);
  [[nodiscard]] std::shared_ptr<Work> start(GroupOperation operation);
  void drain() { queue_.drain(); }

  // The team of two in which `from` sends to `to` (ranks in this team) what has this tag, and
  // nothing else.
  [[nodiscard]] Team& pair(int from, int to, unsigned tag);

  // Control thread: ends the group of `generation` or of one before. Never blocks.
  void abort(Generation generation);

 private:
  struct Formed {
    std::shared_ptr<collective::Group> group;
    Generation generation = 0;
  };
  [[nodiscard]] Verdict perform(const GroupOperation& operation);
  [[nodiscard]] Verdict enter(std::shared_ptr<collective::Group>& group);
  [[nodiscard]] Verdict form(Generation generation);

  std::shared_ptr<Era> era_;
  Members members_;
  std::mutex turn_;   // Held by whoever performs an operation.
  std::mutex mutex_;  // Of the next four; held for moments only.
  bool closing_ = false;
  Formed formed_;
  Generation forming_ = 0;
  std::stop_source stop_;
  std::mutex pairs_mutex_;
  std::map<std::tuple<int, int, unsigned>, std::unique_ptr<Team>> pairs_;
  Queue queue_;  // Last: its thread uses all above.
};

}  // namespace holdfast::capi
