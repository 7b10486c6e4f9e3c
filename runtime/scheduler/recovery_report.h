// Recovery reports: what failed, and how many milliseconds each phase of the recovery took.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "core/controller/machine.h"
#include "wire/reason.h"

namespace holdfast::runtime {

// One recovery. Instants are CLOCK_MONOTONIC; those that were not reached are missing.
struct RecoveryReport {
  std::uint64_t number = 0;       // Counts the recoveries of the job, from 1.
  Generation generation = 0;      // That was formed.
  wire::Reason cause;             // Of the first fault.
  std::vector<Rank> ranks;        // Lost in it; empty where none was.
  Version version = 0;            // After which training went on.
  std::uint64_t steps_lost = 0;   // Known to be committed before the fault, and made once more.
  Instant detected{};             // When the first fault was known, by its agent where it tells.
  std::optional<Instant> stop;    // The ranks were told to stop.
  std::optional<Instant> plan;    // All had reported, and the version was chosen.
  std::optional<Instant> repair;  // All hold that version.
  std::optional<Instant> resume;  // The ranks were told to go on.
  std::optional<Instant> first_step;  // Every rank has made a new step.
};

// One line of JSON, as in recoveries.jsonl: {"recovery":1,"generation":2,"cause":…,"ranks":[1],
// "version":120,"steps_lost":0,"detected_ns":…,"stop_ms":0.1,"plan_ms":…,"repair_ms":…,
// "resume_ms":…,"first_step_ms":…}. Every …_ms counts from detected_ns; null: not reached.
std::string to_json(const RecoveryReport& report);

// One line for people.
std::string in_words(const RecoveryReport& report);

// Whether it is only known that a process died, and not yet how: its agent tells a moment later.
bool lacks_how(const RecoveryReport& report);
// If the note (kHow) is of the death that the report begins with, the report says how it came.
// Returns whether it is.
bool complete(RecoveryReport& report, const controller::Note& how);

// Makes the reports out of the controller's notes.
class RecoveryLog {
 public:
  explicit RecoveryLog(std::uint64_t recoveries_so_far) : number_(recoveries_so_far) {}

  // What a note adds. Returns the report that it finished, if any: one whose ranks have all made a
  // new step, or one that the next fault cut short.
  std::optional<RecoveryReport> note(Instant now, const controller::Note& note);
  // The job has ended; what of its last recovery is known.
  std::optional<RecoveryReport> finish();

 private:
  void begin(Instant now, const controller::Note& note);

  std::uint64_t number_ = 0;
  std::optional<RecoveryReport> current_;
};

}  // namespace holdfast::runtime
