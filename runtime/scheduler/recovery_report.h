// Recovery reports: what failed, and how many milliseconds each phase of the recovery took.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "core/controller/machine.h"
#include "wire/reason.h"

namespace holdfast::runtime {

// A process that took the place of a lost one.
struct Successor {
  Rank rank = kNoRank;
  std::int64_t pid = 0;
  std::string host;
  Instant at{};
};

// One of the faults of a recovery.
struct Fault {
  wire::Reason what;
  Instant at{};  // When it was noticed.
  // Until then: how long the others had waited for the rank, if it was named for that.
  std::optional<Duration> waited;
  std::uint64_t drill = 0;  // Number of the remark of the drill that ordered it; 0: none did.
};

// One recovery. Instants are CLOCK_MONOTONIC; those that were not reached are missing.
struct RecoveryReport {
  std::uint64_t number = 0;   // Counts the recoveries of the job, from 1.
  Generation generation = 0;  // The generation that the recovery formed.
  std::vector<Fault> faults;  // In order, at least one: the first is the recovery's cause.
  std::vector<Rank> ranks;    // Ranks that were lost; empty if none was.
  Version version = 0;        // The version after which training went on.
  // Steps known to be committed before the fault that had to be made again.
  std::uint64_t steps_lost = 0;
  // When the first fault was noticed: by an agent if it says so, else by the scheduler.
  Instant detected{};
  std::optional<Instant> stop;        // The ranks were told to stop.
  std::optional<Instant> plan;        // All had reported, and the version was chosen.
  std::optional<Instant> repair;      // All hold that version.
  std::optional<Instant> resume;      // The ranks were told to go on.
  std::optional<Instant> first_step;  // Every rank has made a new step.
  Instant over{};                     // That, or the next fault, or the job's end has come.
  std::vector<Successor> successors;
  std::vector<controller::Rebuilt> rebuilt;  // What the ranks did that had not kept the version.
  std::int64_t unix_ms = 0;                  // `detected`, by the wall clock.

  [[nodiscard]] const wire::Reason& cause() const { return faults.front().what; }
};

// "2026-11-29T13:45:12.345Z": a time of the wall clock in UTC, as ISO 8601 has it.
std::string iso_8601(std::int64_t unix_ms);

// One line of JSON, as in recoveries.jsonl: {"recovery":1,"generation":2,"cause":…,"kind":"killed",
// "ranks":[1],"version":120,"steps_lost":0,"detected_ns":…,"stop_ms":0.1,"plan_ms":…,"repair_ms":…,
// "resume_ms":…,"first_step_ms":…,"over_ms":…,"at":"2026-11-29T13:45:12.345Z","seen_by":…,
// "faults":[{"rank":1,"pid":5,"cause":…,"seen_by":…,"after_ms":0.0,"waited_ms":null,"drill":null}],
// "successors":
// [{"rank":1,"pid":7,"host":"a","after_ms":3.1}],"rebuilt":[{"rank":1,"act":"receive","source":0,
// "private_source":null,"bytes":4096,"of_pages":true}],"left_out":0}. Every …_ms counts from
// detected_ns; null: not reached. The three lists have at most 64 entries each; left_out: how many
// more there are.
std::string to_json(const RecoveryReport& report);

// One line for people.
std::string in_words(const RecoveryReport& report);

// Whether the report says that some process died but not yet how: its agent reports that a moment
// later.
bool lacks_how(const RecoveryReport& report);
// If `how` (a kHow) is about a death in the report, puts the cause of that death into the report.
// Returns whether it did.
bool complete(RecoveryReport& report, const controller::Note& how);

// Makes the reports out of the controller's notes.
class RecoveryLog {
 public:
  explicit RecoveryLog(std::uint64_t recoveries_so_far) : number_(recoveries_so_far) {}

  // Takes in a note. Returns the report that the note finished, if any: one whose ranks have all
  // made a new step, or one that the next fault cut short.
  std::optional<RecoveryReport> note(Instant now, const controller::Note& note);
  // Call it when the job has ended, for this reason. Returns what is known of the last recovery. If
  // somebody has interrupted the whole job, the ends of its processes are no recovery.
  std::optional<RecoveryReport> finish(Instant now, const wire::Reason& end);

 private:
  struct HeldUp {
    std::int64_t pid = 0;
    Instant since{};
  };

  void begin(Instant now, const controller::Note& note);
  void add_fault(Instant at, const wire::Reason& what);
  std::optional<RecoveryReport> take(Instant now);

  std::uint64_t number_ = 0;
  std::optional<RecoveryReport> current_;
  std::map<Rank, HeldUp> held_up_;  // Ranks that were named because the others waited for them.
};

}  // namespace holdfast::runtime
