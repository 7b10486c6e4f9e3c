// StartingSpares: bounds the processor time of the spares that are not ready yet.
//
// Until it is ready a spare competes with the training for a bounded share of a processor
// (core/agent/share.h); for the rest of the time, and once it is ready, it is idle.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "core/agent/machine.h"
#include "core/agent/share.h"
#include "io/loop.h"

namespace holdfast::runtime {

// Call it in the loop's thread only.
class StartingSpares {
 public:
  // `percent`: of one processor, for each spare. `may_be_idle`: may_undo_idle(); if it is false, no
  // spare is bounded, and all stay ordinary.
  StartingSpares(io::Loop& loop, int percent, bool may_be_idle,
                 std::function<void(agent::Process)> on_ready);

  [[nodiscard]] bool begins_idle() const { return may_be_idle_ && percent_ == 0; }
  void add(agent::Process process, pid_t group, const std::string& lifeline);
  void forget(agent::Process process);  // The process has a place, or has ended.

 private:
  struct Spare {
    pid_t group = 0;
    std::string lifeline;
    agent::Share share;
    std::map<pid_t, std::uint64_t> members;  // Processor time, in ns, of each process of the group.
  };
  void look();
  static void find_members(Spare& spare);
  static void bound(Spare& spare, bool has_new_members);

  io::Loop& loop_;
  const int percent_;
  const bool may_be_idle_;
  std::function<void(agent::Process)> on_ready_;
  std::map<agent::Process, Spare> spares_;
  std::uint64_t looks_ = 0;
  bool is_looking_ = false;
};

}  // namespace holdfast::runtime
