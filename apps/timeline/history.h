// What happened to a job, out of its traces: who had which rank when, who died, and how long each
// phase of each recovery took. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/timeline/read.h"

namespace holdfast::apps::timeline {

// A process in a lane, for as long as it was there.
struct Bar {
  std::int64_t pid = 0;
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  bool waits = false;          // A spare that has no place yet.
  std::string death;           // In words; empty: it did not die, or after the job's end.
  const File* file = nullptr;  // Whose steps are drawn.
};

// One after the other.
struct Lane {
  std::string name;
  std::int64_t rank = -1;  // -1: the scheduler, an agent, a spare.
  std::vector<Bar> bars;
};

// In the order of time; each ends where the next begins.
enum class Phase : std::uint8_t { kNotice, kStop, kRepair, kForm, kFirstStep };
constexpr std::size_t kPhases = 5;
const char* name(Phase phase);

struct Recovery {
  std::int64_t number = 0;  // From 1.
  std::string cause;
  std::vector<std::int64_t> ranks;  // Lost in it.
  std::int64_t detected_ns = 0;
  std::array<std::int64_t, kPhases> ends_ns{};  // 0: not reached.
  std::uint64_t steps_lost = 0;

  [[nodiscard]] std::int64_t end_ns() const;  // Of the last phase that was reached.
  [[nodiscard]] bool done() const { return ends_ns.back() != 0; }
  [[nodiscard]] bool went_on() const {
    return ends_ns[static_cast<std::size_t>(Phase::kRepair)] != 0;
  }
};

struct History {
  std::string job;
  std::vector<Lane> lanes;
  std::vector<Recovery> recoveries;
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  std::int64_t wall_ns = 0;  // The wall clock at from_ns; 0: the files do not tell.
  std::uint64_t steps = 0;
  std::size_t ranks = 0;
};

// The bars point into `files`, which must outlive the history.
History history_of(const std::vector<File>& files);

// "SIGKILL", "exit 3", or "died" where the words have neither.
std::string short_death(const std::string& words);

}  // namespace holdfast::apps::timeline
