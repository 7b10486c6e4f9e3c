// CurrentGeneration: the generation that this process is in. It ends all groups of it when it is
// told to, and it alone knows up to which generation it was told so. It knows also whether a peer
// has ended the world's group.
#pragma once

#include <condition_variable>
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
    // How long a team that could not form waits for the word that its generation is aborted. It
    // waits so long, too, if no scheduler is in reach.
    Duration abort_patience{};
    std::shared_ptr<Tape> played;  // Of a rehearsal: all its groups are played from it.
  };
  explicit CurrentGeneration(Options options) : options_(std::move(options)) {}

  [[nodiscard]] const Options& options() const { return options_; }

  // From here on `generation` is the current one; 0: none is. Returns the token under which its
  // group of all ranks, the world's, is to be formed; that of the former generation is let go of.
  // `layout`: where the ranks of the world lie in it.
  std::stop_token begin(Generation generation, Layout layout = {});
  // The world's group of the current generation; null: there is none any more.
  void formed(std::shared_ptr<Group> world);

  // Forms a group: with the other ranks, or of what is played.
  [[nodiscard]] Result<std::shared_ptr<Group>> join(const Group::Options& options,
                                                    std::stop_token cancel) const;
  // From here on all that teams exchange is recorded; null: no more. Requires: none exchanges.
  void record_on(std::shared_ptr<Tape> tape);

  struct Now {
    Generation generation = 0;
    std::shared_ptr<Tape> recorded;  // As of record_on().
    std::shared_ptr<Group> world;
    bool aborted = false;
    std::shared_ptr<const Layout> layout;  // Of the world; null before the first begin().
    // Stopped by abort(): whoever forms a group of this generation, or has one, goes by it.
    std::stop_token on_abort;
  };
  [[nodiscard]] Now now() const;

  // Ends the groups of `generation` and of those before, and their forming. Waits for no group.
  void abort(Generation generation);
  // Waits for that. False: it has not come in time, so that something else is wrong.
  [[nodiscard]] bool wait_for_abort(Generation generation);

 private:
  [[nodiscard]] bool is_aborted() const { return aborted_ >= now_.generation; }

  const Options options_;
  mutable std::mutex mutex_;
  Now now_;
  Generation aborted_ = 0;  // This and all before.
  std::condition_variable was_aborted_;
  std::stop_source ending_;  // now_.on_abort is its token.
};

}  // namespace holdfast::collective
