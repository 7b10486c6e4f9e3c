// ElectionJobs: the jobs of a simulated election: their hosts, scheduler processes and runs, the
// etcd that they share, and time. All classes of the election share one ElectionJobs. It decides
// nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "core/election/machine.h"
#include "sim/choices.h"
#include "sim/etcd.h"
#include "sim/run_log.h"
#include "sim/timeline.h"

namespace holdfast::sim {

struct ElectionJobs {
  using Index = std::size_t;

  struct Host {  // A host with its agent.
    std::string name;
    std::string agent;
    std::string token;
    std::uint64_t run = 0;
    std::uint64_t attempt = 0;
    bool standby = false;
    bool by_hand_again = false;
    bool is_over = false;           // It is lost, or its agent starts no scheduler any more.
    Instant cut_until{};            // Until then it reaches neither etcd nor other hosts.
    std::uint64_t part_of = 0;      // The run that its newest scheduler knew of.
    std::set<std::uint64_t> tried;  // The runs that its schedulers have tried to lead.
  };

  struct Scheduler {
    Index host = 0;
    election::Options options;
    std::optional<election::Machine> machine;
    bool alive = true;
    Instant started{};
    Instant stopped_until{};
    Instant disturbed = -std::chrono::hours(1);
    std::optional<Instant> timer;
    std::uint64_t stands_by = 0;  // The run for which it stands by; 0: it does not.
    bool saw_job = false;         // It has seen a key and a journal.
    std::optional<election::Lead> lead;
    bool serves = false;
    Instant led_at{};
    std::int64_t lease = 0;  // The lease that it keeps alive,
    Instant lease_until{};   // which lasts at least until then.
  };

  struct Run {
    std::string token;
    Instant lived = -std::chrono::hours(1);  // When a scheduler of this run last was alive.
    std::optional<Instant> ended;            // When the run ended well.
  };

  ElectionJobs(bool is_small, Choices& all_choices, std::vector<std::string>* lines)
      : small(is_small), choices(all_choices), log(lines) {}

  [[nodiscard]] Instant now() const { return timeline.now(); }
  // Calls `what` after that time, or as soon as the process is not stopped any more; never, if the
  // process has ended by then.
  void for_process(Index p, Duration after, const std::function<void()>& what) {
    timeline.at(now() + after, [this, p, what] {
      const Scheduler& s = schedulers[p];
      if (!s.alive) return;
      if (s.stopped_until > now()) return for_process(p, s.stopped_until - now(), what);
      what();
    });
  }
  Duration pick_time(const std::vector<Duration>& times) {
    return times[choices.pick(static_cast<std::uint32_t>(times.size()))];
  }
  [[nodiscard]] std::string name(Index p) const {
    return cat(schedulers[p].options.self.host_name, "#", p);
  }
  void tell(const std::string& text) {
    if (log.is_wanted()) log.tell(cat(now().count() / 1'000'000, " ms: ", text));
  }
  void violate(const std::string& what) {
    if (violation.empty()) violation = what;
  }

  const bool small;  // The world "candidates"; see simulate_election().
  Choices& choices;
  RunLog log;
  Timeline timeline;
  std::string violation;  // The first one.
  bool quiet = false;     // There are no more faults.
  bool ending = false;    // The jobs have done their work: the one that is served may end.
  std::deque<Host> hosts;
  std::deque<Scheduler> schedulers;  // The dead too.
  std::map<std::uint64_t, Run> runs;
  std::uint64_t next_run = 1;
  Etcd etcd;
};

}  // namespace holdfast::sim
