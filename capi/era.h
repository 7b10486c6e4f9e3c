// Era: the generation that a session's teams belong to. Before a session there is one without end.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/ids.h"
#include "capi/error.h"
#include "collective/group.h"

namespace holdfast::capi {

class Team;

// Any thread.
class Era {
 public:
  struct Place {
    std::string directory;  // Of the teams' folders.
    std::uint64_t run_id = 0;
    Duration join_timeout{};
    // Waits until the control thread has ended this generation; false: it has not.
    std::function<bool(Generation)> wait_for_abort;
  };
  explicit Era(Place place) : place_(std::move(place)) {}

  [[nodiscard]] const Place& place() const { return place_; }

  // The training thread: the session's group is now this one. `world` may be null.
  void turn(Generation generation, std::shared_ptr<collective::Group> world);
  struct Now {
    Generation generation = 0;  // 0: none.
    std::shared_ptr<collective::Group> world;
    bool aborted = false;
  };
  [[nodiscard]] Now now();

  // The control thread.
  void abort(Generation generation);

  void enlist(Team& team);
  void dismiss(Team& team);

 private:
  const Place place_;
  std::mutex mutex_;
  Now now_;
  Generation aborted_ = 0;
  std::set<Team*> teams_;
};

}  // namespace holdfast::capi
