#include "core/agent/stall_watch.h"

#include <algorithm>
#include <utility>

namespace holdfast::agent {

namespace {

// Outside of these, others wait for it in other ways, which have limits of their own.
bool is_training(const Whereabouts& where) {
  return where.doing >= Doing::kBetween && where.doing <= Doing::kUpdating;
}

}  // namespace

void StallWatch::see(Seen& seen, const Whereabouts& where, bool on_time) {
  if (on_time) ++seen.in_step;  // Else this agent may have stood still itself, or the job by order.
  if (where.steps != seen.where.steps) {
    seen.longest_step = std::max(seen.in_step, seen.longest_step * 7 / 8);
    seen.in_step = 0;
  }
  Whereabouts before = seen.where;
  before.waits_for_team = where.waits_for_team;  // Whoever waits in turns has not come further.
  if (where != before) {
    if (std::exchange(seen.stands, false)) job_.is_rest_told = false;
    seen = {.where = where, .in_step = seen.in_step, .longest_step = seen.longest_step};
  } else if (on_time) {
    ++seen.looks;
  }
  if (where.waits_for_team && !std::exchange(seen.has_waited, true) && seen.stands) {
    job_.is_rest_told = false;
  }
  const int patience =
      where.steps > 0 ? std::max(kStallLooks, kStallSteps * seen.longest_step) : kFirstStallLooks;
  if (seen.stands || seen.looks < patience || !is_training(where)) return;
  seen.stands = true;
  job_.is_rest_told = false;
}

void StallWatch::on(const Looked& e) {
  std::map<Process, Seen> still;
  for (const auto& place : job_.places) {
    const auto found = e.whereabouts.find(place.process);
    if (place.role != Role::kWorker || found == e.whereabouts.end()) continue;
    Seen& seen = still[place.process] = std::move(seen_[place.process]);
    see(seen, found->second, e.on_time && !job_.is_paused);
  }
  seen_ = std::move(still);
}

void StallWatch::begin_anew() {
  for (auto& [process, seen] : seen_) {
    if (seen.stands) job_.is_rest_told = false;
    seen = {.where = seen.where, .longest_step = seen.longest_step};
  }
}

void StallWatch::receive(const wire::Inspect& m) {
  for (const auto& place : job_.places) {
    if (place.node_id == m.node_id && place.incarnation == m.incarnation && place.process != 0) {
      job_.emit(Inspect{place.process, place.node_id});
    }
  }
}

void StallWatch::on(const Inspected& e) {
  const auto found = seen_.find(e.process);
  if (found == seen_.end() || !found->second.stands) return;
  found->second.report = e.report;
  job_.is_rest_told = false;
}

bool StallWatch::stands(const std::string& node_id) const {
  return std::any_of(job_.places.begin(), job_.places.end(), [&](const Place& place) {
    const auto found = seen_.find(place.process);
    return place.node_id == node_id && found != seen_.end() && found->second.stands;
  });
}

std::vector<wire::StandingState> StallWatch::standing() const {
  std::vector<wire::StandingState> all;
  for (const auto& place : job_.places) {
    const auto found = seen_.find(place.process);
    if (found == seen_.end() || !found->second.stands) continue;
    const Seen& seen = found->second;
    const auto for_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(seen.looks * kLookEvery);
    all.push_back({place.node_id, seen.where.generation, seen.where.operations, seen.where.version,
                   seen.where.doing, seen.where.steps > 0,
                   static_cast<std::uint32_t>(for_ms.count()), seen.report, seen.has_waited});
  }
  return all;
}

}  // namespace holdfast::agent
