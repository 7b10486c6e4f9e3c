// Names a rank, or a host, whose steps take longer than those of the others. All wait for it in
// each step, and no other sign shows it: the steps of all ranks take the same time.
//
// Each rank tells what its own part of a step takes (wire::Progress): without what it waits for
// others. A rank is slow if that is half as much again as the median, in round after round.
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/ids.h"
#include "core/controller/job.h"
#include "core/controller/remarks.h"

namespace holdfast::controller {

class Stragglers {
 public:
  // A round is over when all ranks have told, and this has passed.
  static constexpr Duration kRound = std::chrono::seconds(1);
  static constexpr int kRounds = 10;  // So many on end make a rank slow, or as fast as the others.

  Stragglers(Job& job, Remarks& remarks) : job_(job), remarks_(remarks) {}

  void hear(Rank rank, const wire::Progress& m);

 private:
  struct Standing {
    int rounds = 0;               // On end in which it was slow; negative: in which it was not.
    std::int64_t own_us = 0;      // In all of these rounds,
    std::int64_t between_us = 0;  // as this,
    std::int64_t usual_us = 0;    // and the medians of both.
    std::int64_t usual_between_us = 0;
    bool is_named = false;
  };
  void judge();
  void name_slow();
  [[nodiscard]] bool is_slow_host(const std::string& host) const;
  [[nodiscard]] wire::Reason reason(Rank rank, const Standing& standing) const;

  Job& job_;
  Remarks& remarks_;
  Generation generation_ = 0;
  Instant began_{};       // The round.
  std::set<Rank> heard_;  // In it.
  std::map<Rank, Standing> standings_;
};

}  // namespace holdfast::controller
