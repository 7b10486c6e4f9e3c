// The spares of this host: processes that wait to take the place of a dead one, and when new ones
// are started.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "core/agent/events.h"
#include "core/agent/job.h"
#include "wire/messages.h"

namespace holdfast::agent {

// After a spare was promoted, a new one is started when the job has made a step, or after this
// time: until then the recovery needs the processors.
inline constexpr Duration kSparePatience = std::chrono::seconds(1);

struct Spare {
  Process process = 0;
  Incarnation incarnation = 0;
  std::string node_id;  // The only place that it may take; empty: any.
  bool is_ready = false;
};

class Spares {
 public:
  explicit Spares(Job& job) : job_(job) {}

  void start_first();
  // This host has given places away, so it becomes a spare host for that many.
  void wait_for_places(std::int32_t places);
  // Takes out the spare for this place: the oldest that is ready, else the oldest; nullopt: none.
  [[nodiscard]] std::optional<Spare> take_for(const Place& place);
  // Will start another spare in its stead; when: see kSparePatience.
  void replace(const Spare& promoted);
  void end_unneeded();

  void ready(Process process);
  void died(const Died& e);                // Requires that has() is true.
  void not_started(const SpawnFailed& e);  // Requires that has() is true.
  void pause_over(std::uint64_t pause);
  // All ranks have made a new step, in this generation.
  void hear_of_step(Generation generation);

  [[nodiscard]] bool has(Process process) const;
  // Whether there are spares, all of them are ready, and no other is to be started.
  [[nodiscard]] bool are_all_ready() const;
  [[nodiscard]] std::vector<wire::SpareState> states() const;

 private:
  struct Owed {  // A spare to start when the pause is over, or earlier:
    std::uint64_t pause = 0;
    Generation after = 0;  // when a step was made in a newer generation than this.
    std::string node_id;   // As in Spare.
  };

  void add(const std::string& node_id);
  [[nodiscard]] bool is_needed(const std::string& spare_of) const;
  [[nodiscard]] std::deque<Spare>::iterator find(Process process);
  void start_owed(const std::function<bool(const Owed&)>& due);

  Job& job_;
  std::deque<Spare> spares_;  // Oldest first.
  std::vector<Owed> owed_;
  std::int32_t failures_ = 0;  // Spares that have failed since the newest step was made.
  Generation generation_ = 0;  // The generation in which that step was made.
};

}  // namespace holdfast::agent
