// Deadlines: the moments at which something happens because time passes: heartbeats, timeouts, ends
// of pauses.
#pragma once

#include <optional>

#include "sim/connections.h"
#include "sim/job.h"

namespace holdfast::sim {

inline constexpr Duration kBeat = std::chrono::seconds(1);

class Deadlines {
 public:
  Deadlines(const Job& job, const Connections& connections)
      : job_(job), connections_(connections), next_beat_(beat_every()) {}

  // The next moment at which something may happen; nullopt: there is none.
  [[nodiscard]] std::optional<Instant> next() const;
  // Whether heartbeats are due. If so, the next ones are due later.
  [[nodiscard]] bool take_beat();

 private:
  [[nodiscard]] Duration beat_every() const;

  const Job& job_;
  const Connections& connections_;
  Instant next_beat_;
};

}  // namespace holdfast::sim
