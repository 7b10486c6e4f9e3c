// The history of a job, computed from its traces: which process had which rank when, which
// processes died, and how long each phase of each recovery took. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/timeline/read.h"

namespace holdfast::apps::timeline {

// One process in a lane, from its start (or promotion) to its end.
struct Bar {
  std::int64_t pid = 0;
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  bool waits = false;          // A spare that has no place yet.
  std::string death;           // In words; empty: it did not die, or only after the job's end.
  const File* file = nullptr;  // The trace with the steps of this bar.
};

// The processes of one place, one after the other.
struct Lane {
  std::string name;
  std::int64_t rank = -1;  // -1: the scheduler, an agent, a spare.
  std::vector<Bar> bars;
};

// The phases of a recovery, in order; each ends when the next begins.
enum class Phase : std::uint8_t { kNotice, kStop, kRepair, kForm, kFirstStep };
constexpr std::size_t kPhases = 5;
const char* name(Phase phase);

struct Recovery {
  std::int64_t number = 0;  // From 1.
  std::string cause;
  std::vector<std::int64_t> ranks;  // The ranks that were lost.
  std::int64_t detected_ns = 0;
  std::array<std::int64_t, kPhases> ends_ns{};  // 0: not reached.
  std::uint64_t steps_lost = 0;

  [[nodiscard]] std::int64_t end_ns() const;  // The end of the last phase that was reached.
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
  std::int64_t wall_ns = 0;  // The wall clock at from_ns; 0: unknown.
  std::uint64_t steps = 0;
  std::size_t ranks = 0;
  bool has_traces = true;  // It knows of single steps, of spares, and when ranks had formed.
};

// The bars point into `files`, which must outlive the history.
History history_of(const std::vector<File>& files);

// "SIGKILL", "exit 3", or "died" if the words have neither.
std::string short_death(const std::string& words);

}  // namespace holdfast::apps::timeline
