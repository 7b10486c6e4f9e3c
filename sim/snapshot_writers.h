// SnapshotWriters: what agents do for snapshots, beside all else that they do. It takes any time,
// may fail, and ends half done if its agent dies.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/disk.h"
#include "sim/job.h"
#include "sim/journal.h"
#include "sim/memory.h"
#include "sim/transition.h"

namespace holdfast::sim {

class SnapshotWriters {
 public:
  SnapshotWriters(Job& job, const Journal& journal, Memory& memory, Disk& disk)
      : job_(job), journal_(journal), memory_(memory), disk_(disk) {}

  // The agent is to do this. The answer, if it is given at once.
  [[nodiscard]] std::optional<wire::Snapshot> begin(Index agent, const wire::Snapshot& order);
  // Adds the ends of what is under way.
  void list(std::vector<Transition>& possible) const;
  [[nodiscard]] wire::Snapshot end(Index agent);  // Returns the answer.
  void cut_short(Index agent);                    // It has ended, or was killed.

 private:
  [[nodiscard]] std::string write(Index agent, wire::Snapshot& order, std::size_t files);
  void name(const wire::Snapshot& order, bool removes);

  Job& job_;
  const Journal& journal_;
  Memory& memory_;
  Disk& disk_;
};

}  // namespace holdfast::sim
