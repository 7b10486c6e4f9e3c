#include "core/agent/reporter.h"

#include <algorithm>
#include <utility>

#include "wire/messages.h"

namespace holdfast::agent {

void Reporter::report() {
  const Options& options = job_.options;
  wire::AgentState state{
      .job = options.job, .agent_id = options.agent_id, .host = options.host, .places = {}};
  for (const auto& place : job_.places) {
    if (place.role == Role::kScheduler) continue;
    state.places.push_back({place.node_id, place.incarnation, place.attempt, place.process != 0,
                            place.ending, place.detected_ns});
  }
  state.takes = static_cast<std::uint32_t>(std::max(0, options.takes));
  state.spares = spares_.states();
  state.rehearsals = rehearsals_.verdicts();
  state.standing = stalls_.standing();
  state.remarks = job_.remarks;
  job_.are_places_told = job_.is_rest_told = job_.link == LinkState::kUp;
  job_.send(std::move(state));
}

void Reporter::report_changes() {
  const bool is_due = !job_.is_rest_told && job_.link == LinkState::kUp;
  if (is_due && job_.state == State::kRunning) report();
}

}  // namespace holdfast::agent
