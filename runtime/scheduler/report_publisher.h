// ReportPublisher: says each recovery report, and writes it into the job's recoveries.jsonl.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/controller/events.h"
#include "io/loop.h"
#include "runtime/scheduler/recovery_report.h"

namespace holdfast::runtime {

class ReportPublisher {
 public:
  // The number of the remark of the drill that has ordered this fault; 0: none has.
  using DrillBehind = std::function<std::uint64_t(const wire::Reason&)>;

  // `directory`: the job's runtime folder. `recoveries`: how many the job has had so far. Requires:
  // `loop` outlives the publisher, and the publisher outlives the loop's run.
  ReportPublisher(io::Loop& loop, const std::string& directory, std::uint64_t recoveries,
                  DrillBehind drill_behind)
      : loop_(loop),
        directory_(directory),
        log_(recoveries),
        drill_behind_(std::move(drill_behind)) {}

  void load();    // Reads the reports of this scheduler's predecessor.
  void remove();  // Removes the file: it is of a dead job of the same name.

  void note(const controller::Note& note);
  // The job has ended, for this reason: publishes what is known of the last recovery.
  void finish(const wire::Reason& end);
  // Writes the job's status into its last_status.json.
  void keep(const std::string& status) const;
  void publish();  // Publishes the report that is held, if there is one.
  // Lines of recoveries.jsonl, the newest last.
  [[nodiscard]] const std::deque<std::string>& newest() const { return newest_; }

 private:
  void take(std::optional<RecoveryReport> report);
  void publish(RecoveryReport report);

  io::Loop& loop_;
  const std::string directory_;
  const std::string path_ = directory_ + "/recoveries.jsonl";
  RecoveryLog log_;
  const DrillBehind drill_behind_;
  std::optional<RecoveryReport> held_;  // Until it is known how its ranks died.
  std::deque<std::string> newest_;
};

}  // namespace holdfast::runtime
