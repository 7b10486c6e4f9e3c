// CurrentGeneration: all groups of the generation that this process is in. It ends them when it is
// told to. It knows whether they have ended, by that or because a peer has ended the world's group.
// The trainer's machine knows what the scheduler has said of the generation.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <utility>

#include "base/ids.h"
#include "collective/group.h"

namespace holdfast::collective {

class Team;

// Any thread.
class CurrentGeneration {
 public:
  struct Options {
    std::string directory;  // The teams' folders lie in it.
    std::uint64_t run_id = 0;
    Duration join_timeout{};
    // After a team could not form: waits for the word that this generation is aborted. False: there
    // is none, so that something else is wrong.
    std::function<bool(Generation)> wait_for_abort;
  };
  explicit CurrentGeneration(Options options) : options_(std::move(options)) {}

  [[nodiscard]] const Options& options() const { return options_; }

  // From here on `generation` is the current one; 0: none is. Returns the token under which its
  // group of all ranks, the world's, is to be formed; that of the former generation is let go of.
  // `layout`: where the ranks of the world lie in it.
  std::stop_token begin(Generation generation, Layout layout = {});
  // The world's group of the current generation; null: there is none any more.
  void formed(std::shared_ptr<Group> world);

  struct Now {
    Generation generation = 0;
    std::shared_ptr<Group> world;
    bool aborted = false;
    std::shared_ptr<const Layout> layout;  // Of the world; null before the first begin().
  };
  [[nodiscard]] Now now() const;

  // Ends the groups of `generation` and of those before, and their forming. Waits for no group.
  // Returns whether no operation that was started is under way in the world's group.
  bool abort(Generation generation);

 private:
  friend class Team;
  void enlist(Team& team);
  void dismiss(Team& team);
  [[nodiscard]] bool is_aborted() const { return aborted_ >= now_.generation; }

  const Options options_;
  mutable std::mutex mutex_;
  Now now_;
  Generation aborted_ = 0;  // This and all before.
  std::stop_source forming_;
  std::set<Team*> teams_;
};

}  // namespace holdfast::collective
