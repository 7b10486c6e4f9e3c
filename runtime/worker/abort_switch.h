// AbortSwitch: ends, from any thread and at once, what a training thread does with the other ranks.
//
// It knows no generation and decides nothing: the trainer machine says when.
#pragma once

#include <sys/types.h>

#include <functional>
#include <mutex>
#include <stop_token>

#include "base/ids.h"
#include "collective/group.h"

namespace holdfast::runtime {

class AbortSwitch {
 public:
  // Called by stop() with its generation. Must not block. Null: no more; after the return the old
  // one is not running.
  void on_stop(std::function<void(Generation)> handler);

  // From here on stop() means the group that is formed next.
  void arm();
  // Under which that group is to be formed.
  [[nodiscard]] std::stop_token token();
  // The group that was formed. Null: there is none any more; its threads have ended, or will before
  // it has.
  void hold(collective::Group* group);

  // Ends the group and its forming. Never blocks for longer than the few lines that hold the mutex.
  // Returns whether none of the group's sums is under way.
  bool stop(Generation generation);

  // By the thread in which the group makes its sums, at first.
  void begins_sums();

 private:
  std::mutex mutex_;
  std::stop_source stop_;
  collective::Group* group_ = nullptr;
  pid_t sums_thread_ = 0;
  std::function<void(Generation)> handler_;
};

}  // namespace holdfast::runtime
