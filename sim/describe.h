// Narrator: describes transitions and faults of the world in words, for the log.
#pragma once

#include <string>

#include "sim/job.h"
#include "sim/scheduler.h"
#include "sim/transition.h"

namespace holdfast::sim {

class Narrator {
 public:
  Narrator(const Job& job, const SchedulerShell& scheduler) : job_(job), scheduler_(scheduler) {}

  [[nodiscard]] std::string describe(const Transition& transition) const;
  [[nodiscard]] std::string describe(const Mishap& mishap) const;

 private:
  [[nodiscard]] std::string describe_for_agent(const Transition& transition) const;
  [[nodiscard]] static std::string in_words(const Letter& letter);
  [[nodiscard]] static std::string what_is_next(const Worker& worker);

  const Job& job_;
  const SchedulerShell& scheduler_;
};

}  // namespace holdfast::sim
