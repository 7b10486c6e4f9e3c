// Record: what `holdfast serve` has learned of a job, from one answer of its scheduler after the
// other.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/json.h"

namespace holdfast::apps::web {

// A time of the wall clock, in seconds since 1970.
using Seconds = double;
inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// How the job was at one moment. `loss`: the mean over the ranks that told one; kNone: none did.
struct Point {
  Seconds at = 0;
  double step = 0;
  double loss = kNone;
  double steps_per_s = kNone;  // Since the point before.
};

// The phases of a recovery, in the order in which they end, and the key of a report that says when.
struct Phase {
  const char* name;
  const char* end;  // Milliseconds since the fault was noticed.
};
inline constexpr std::array<Phase, 4> kPhases{{{"notice", "stop_ms"},
                                               {"stop", "plan_ms"},
                                               {"repair", "resume_ms"},
                                               {"first_step", "first_step_ms"}}};
// How long each phase of a recovery took, in seconds; kNone: it was not reached.
std::array<double, kPhases.size()> phases_of(const Json& report);

// What a report says of its cause for programs (docs/formats/runtime-folder.md). A word that is not
// known here is kOther: it becomes a label, and labels have to be few.
inline constexpr std::array<std::string_view, 14> kCauses{
    "killed", "exited",     "died",       "stopped", "silent",   "hung",      "gone",
    "taken",  "group_lost", "pages_lost", "moved",   "snapshot", "scheduler", "other"};
std::string_view cause_of(const Json& report);

// A sum over recoveries, as Prometheus has it.
struct Times {
  double seconds = 0;
  std::uint64_t count = 0;
};

class Record {
 public:
  // Takes in an answer, which the scheduler took `took` seconds to give.
  void take(Json status, Seconds now, double took);
  // There was no answer, and why.
  void miss(std::string why);

  // The newest answer; no object: there was none yet. Any value in it may be missing or of another
  // type.
  [[nodiscard]] const Json& status() const { return status_; }
  // Why there is no answer at present; empty: there is one.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  [[nodiscard]] Seconds answered() const { return answered_; }
  [[nodiscard]] double took() const { return took_; }

  // At most kMostPoints: if there are more, every second one is dropped. So they reach back to the
  // first answer, and the memory stays the same.
  static constexpr std::size_t kMostPoints = 600;
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }
  // Steps per second over the newest 10 s. kNone: not known.
  [[nodiscard]] double speed() const;

  // Of the recoveries since the first answer. So a process that is started again begins with 0, as
  // Prometheus expects of a counter.
  [[nodiscard]] const std::map<std::string_view, std::uint64_t>& causes() const { return causes_; }
  [[nodiscard]] const std::array<Times, kPhases.size()>& phases() const { return phases_; }
  [[nodiscard]] std::uint64_t steps_lost() const { return steps_lost_; }

  // When a snapshot was first seen. It may be older if it was there at the first answer. kNone: it
  // was not, or that is no version. A scheduler may say anything.
  [[nodiscard]] Seconds first_seen(double version) const;

 private:
  void add_point(Seconds now);
  void count_recoveries(bool is_first);
  void note_snapshots(Seconds now);

  Json status_;
  std::string why_not_ = "the scheduler has not been asked yet";
  Seconds answered_ = 0;
  double took_ = 0;
  std::vector<Point> points_;
  std::vector<Point> newest_;  // Those of the last 10 s.
  Seconds apart_ = 0;          // The least time between two of points_.
  double newest_recovery_ = 0;
  std::map<std::string_view, std::uint64_t> causes_;
  std::array<Times, kPhases.size()> phases_;
  std::uint64_t steps_lost_ = 0;
  std::map<std::uint64_t, Seconds> snapshots_;
};

}  // namespace holdfast::apps::web
