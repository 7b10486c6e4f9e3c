// CurrentGeneration: the generation that this process is in. abort() ends all groups of the
// generation; this class alone remembers up to which generation abort() was called. It knows also
// whether a peer has ended the world's group.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "collective/group.h"
#include "collective/tape.h"

namespace holdfast::collective {

// Any thread.
class CurrentGeneration {
 public:
  struct Options {
    std::string directory;  // The teams' folders lie in it.
    std::uint64_t run_id = 0;
    Duration join_timeout{};
    // How long a team that could not form its group waits for abort() of that generation; it waits
    // as long if no scheduler is in reach. After that the failure is an error.
    Duration abort_patience{};
    std::shared_ptr<Tape> played;  // In a rehearsal: all groups are played from this. Else null.
    // For those who look for ranks that stand still: how many operations of teams of some ranks
    // have ended, and how many threads of the program wait for one. Null: nobody looks.
    std::shared_ptr<std::atomic<std::uint64_t>> team_operations, team_waits;
  };
  explicit CurrentGeneration(Options options) : options_(std::move(options)) {}

  [[nodiscard]] const Options& options() const { return options_; }

  // Makes `generation` the current one; 0: there is none. Drops the former generation's group of
  // all ranks (the world's group). Returns the stop token under which the new one is to be formed.
  // `layout`: on which hosts the ranks of the world lie in this generation.
  std::stop_token begin(Generation generation, Layout layout = {});
  // Sets the world's group of the current generation; null: there is none any more.
  void formed(std::shared_ptr<Group> world);

  // Forms a group with the other ranks; in a rehearsal, one that is played from Options::played.
  [[nodiscard]] Result<std::shared_ptr<Group>> join(const Group::Options& options,
                                                    std::stop_token cancel) const;
  // Records all exchanges of teams from here on; null: no more. Requires: none is under way.
  void record_on(std::shared_ptr<Tape> tape);

  struct Now {
    Generation generation = 0;
    std::shared_ptr<Tape> recorded;  // Set by record_on().
    std::shared_ptr<Group> world;
    bool aborted = false;
    std::shared_ptr<const Layout> layout;  // The world's; null before the first begin().
    // abort() requests its stop. Whoever forms or holds a group of this generation must watch it.
    std::stop_token on_abort;
  };
  [[nodiscard]] Now now() const;

  // Ends the groups of all generations up to `generation`, and their forming. Does not block.
  void abort(Generation generation);
  // Waits for abort(generation). False: not called within Options::abort_patience, so the cause is
  // not a fault that the scheduler knows of.
  [[nodiscard]] bool wait_for_abort(Generation generation);

 private:
  [[nodiscard]] bool is_aborted() const { return aborted_ >= now_.generation; }

  const Options options_;
  mutable std::mutex mutex_;
  Now now_;
  Generation aborted_ = 0;  // This generation and all before it are aborted.
  std::condition_variable was_aborted_;
  std::stop_source ending_;  // now_.on_abort is its token.
};

}  // namespace holdfast::collective
