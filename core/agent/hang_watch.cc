#include "core/agent/hang_watch.h"

#include <utility>

#include "core/agent/process_end.h"

namespace holdfast::agent {

void HangWatch::on(const Looked& e) {
  std::map<Process, int> counts;
  for (const Process process : e.stopped) {
    if (!job_.running.contains(process) || process == rehearsals_.under_way()) continue;
    // If this agent has missed a look, it stood still itself: count anew.
    const int looks = 1 + (e.on_time ? stopped_[process] : 0);
    counts[process] = looks;
    if (looks < kStoppedLooks || !killed_.emplace(process, wire::Ending::Kind::kWasStopped).second)
      continue;
    const Place* place = job_.place_of(process);
    if (place != nullptr && place->role == Role::kWorker) rehearsals_.call_off();
    job_.kill(process);
  }
  stopped_ = std::move(counts);
}

void HangWatch::receive(const wire::Evict& m) {
  for (const auto& place : job_.places) {
    if (place.node_id == m.node_id && place.incarnation == m.incarnation && place.process != 0) {
      rehearsals_.call_off();
      killed_.emplace(place.process,
                      m.is_hung ? wire::Ending::Kind::kWasHung : wire::Ending::Kind::kWasSilent);
      job_.kill(place.process);
    }
  }
}

wire::Ending HangWatch::ending_of(const Died& e) {
  const auto killed = killed_.find(e.process);
  if (killed == killed_.end()) return e.ending;
  const wire::Ending ending{killed->second, 0};
  if (is_told(e)) killed_.erase(killed);
  return ending;
}

}  // namespace holdfast::agent
