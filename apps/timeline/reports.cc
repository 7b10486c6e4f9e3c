#include "apps/timeline/reports.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "apps/timeline/draw.h"
#include "base/text.h"

namespace holdfast::apps::timeline {
namespace {

constexpr double kLongestMs = 1e12;  // Some 30 years.

// "2026-01-31T23:59:59.123Z" in ns since 1970.
std::optional<std::int64_t> time_of(const std::string& text) {
  std::tm parts{};
  int ms = 0;
  char zone = 0;
  const int read =
      std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3d%c", &parts.tm_year, &parts.tm_mon,
                  &parts.tm_mday, &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &ms, &zone);
  if (read != 8 || zone != 'Z' || parts.tm_year > 2200 || parts.tm_year < 1970) return std::nullopt;
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  return (static_cast<std::int64_t>(::timegm(&parts)) * 1000 + std::max(ms, 0)) * 1'000'000;
}

std::int64_t integer_of(const Json& json, const char* key, std::int64_t otherwise) {
  const auto number = number_of(json, key);
  const bool fits = number && *number >= 0 && *number < 9e15;
  return fits ? static_cast<std::int64_t>(*number) : otherwise;
}

// The lanes of the ranks, filled in the order of time.
class Ranks {
 public:
  explicit Ranks(Span ran) : ran_(ran) {}

  void take(const Json& report, std::int64_t detected_ns) {
    std::vector<Event> events;
    for (const bool comes : {false, true}) {
      for (const Json& one : list_of(report, comes ? "successors" : "faults")) {
        const auto rank = one.is_object() ? integer_of(one, "rank", -1) : -1;
        if (rank >= 0) events.push_back({after(one, detected_ns), rank, comes, &one});
      }
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return a.t_ns < b.t_ns; });
    for (const Event& event : events) event.comes ? begin(event) : note(event);
    // A rank that has no successor lives, if the job went on: it has lost a page or a connection.
    const bool went_on = number_of(report, "first_step_ms").has_value();
    for (const auto& [rank, death] : died_) {
      if (!went_on) close(last(rank), death);
    }
    died_.clear();
  }

  std::vector<Lane> take_lanes(const Json& status) {
    for (const Json& one : list_of(status, "ranks")) {
      const auto rank = one.is_object() ? integer_of(one, "rank", -1) : -1;
      if (rank >= 0) last(rank).pid = integer_of(one, "pid", last(rank).pid);
    }
    std::vector<Lane> lanes;
    for (auto& [rank, bars] : bars_) lanes.push_back({cat("rank ", rank), rank, std::move(bars)});
    if (lanes.size() <= kMostLanes) return lanes;
    std::stable_partition(lanes.begin(), lanes.end(),
                          [](const Lane& lane) { return lane.bars.size() > 1; });
    return lanes;
  }

 private:
  struct Event {
    std::int64_t t_ns = 0;
    std::int64_t rank = 0;
    bool comes = false;  // A successor. Else the rank has failed.
    const Json* json = nullptr;
  };
  struct Death {
    std::int64_t t_ns = 0;
    std::string words;
  };

  Bar& last(std::int64_t rank) {
    auto& bars = bars_[rank];
    if (bars.empty()) bars.push_back({.from_ns = ran_.from_ns, .to_ns = ran_.to_ns});
    return bars.back();
  }

  std::int64_t after(const Json& json, std::int64_t detected_ns) const {
    const double ms = std::clamp(number_of(json, "after_ms").value_or(0), 0.0, kLongestMs);
    return std::min(detected_ns + static_cast<std::int64_t>(ms * 1e6), ran_.to_ns);
  }

  void note(const Event& fault) {
    Bar& bar = last(fault.rank);
    bar.pid = integer_of(*fault.json, "pid", bar.pid);
    died_[fault.rank] = {fault.t_ns, text_of(*fault.json, "cause")};
  }

  void begin(const Event& successor) {
    const auto death = died_.find(successor.rank);
    const bool is_known = death != died_.end();
    close(last(successor.rank), is_known ? death->second : Death{successor.t_ns, "died"});
    if (is_known) died_.erase(death);
    bars_[successor.rank].push_back({.pid = integer_of(*successor.json, "pid", 0),
                                     .from_ns = successor.t_ns,
                                     .to_ns = ran_.to_ns});
  }

  static void close(Bar& bar, const Death& death) {
    bar.to_ns = std::max(bar.from_ns, death.t_ns);
    bar.death = death.words;
  }

  Span ran_;
  std::map<std::int64_t, std::vector<Bar>> bars_;
  std::map<std::int64_t, Death> died_;  // Those of whom no successor is known yet.
};

Recovery recovery_of(const Json& report, std::int64_t detected_ns) {
  Recovery one{.number = integer_of(report, "recovery", 0),
               .cause = text_of(report, "cause"),
               .detected_ns = detected_ns,
               .steps_lost = static_cast<std::uint64_t>(integer_of(report, "steps_lost", 0))};
  for (const Json& rank : list_of(report, "ranks")) {
    if (rank.is_number_unsigned()) one.ranks.push_back(rank.get<std::int64_t>());
  }
  constexpr std::pair<Phase, const char*> kEnds[] = {{Phase::kNotice, "stop_ms"},
                                                     {Phase::kStop, "plan_ms"},
                                                     {Phase::kRepair, "resume_ms"},
                                                     {Phase::kFirstStep, "first_step_ms"}};
  for (const auto& [phase, key] : kEnds) {
    const auto ms = number_of(report, key);
    if (!ms || *ms < 0 || *ms > kLongestMs) continue;
    one.ends_ns[static_cast<std::size_t>(phase)] =
        detected_ns + static_cast<std::int64_t>(*ms * 1e6);
  }
  return one;
}

}  // namespace

History history_of_reports(const std::vector<Json>& reports, const Json& status, Span ran) {
  std::vector<std::pair<std::int64_t, const Json*>> timed;  // By detected_ns.
  for (const Json& report : reports) {
    const auto at = time_of(text_of(report, "at"));
    if (at) timed.emplace_back(std::min(*at, ran.to_ns), &report);
  }
  // The launcher may have been started anew (--continue).
  if (!timed.empty()) ran.from_ns = std::min(ran.from_ns, timed.front().first);
  ran.to_ns = std::max(ran.to_ns, ran.from_ns);
  History history{.job = text_of(status, "job"),
                  .from_ns = ran.from_ns,
                  .to_ns = ran.to_ns,
                  .wall_ns = ran.from_ns,
                  .steps = static_cast<std::uint64_t>(integer_of(status, "version", 0)),
                  .has_traces = false};
  Ranks ranks(ran);
  for (const auto& [detected_ns, report] : timed) {
    ranks.take(*report, detected_ns);
    history.recoveries.push_back(recovery_of(*report, detected_ns));
  }
  history.lanes = ranks.take_lanes(status);
  history.ranks = history.lanes.size();
  return history;
}

}  // namespace holdfast::apps::timeline
