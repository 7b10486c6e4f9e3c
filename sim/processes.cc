#include "sim/processes.h"

namespace holdfast::sim {
namespace {

constexpr agent::Process kNumbers = 100'000;  // More than the processes of one agent.

}  // namespace

agent::Process number_in_world(Index agent, agent::Process at_agent) {
  return at_agent + agent * kNumbers;
}
agent::Process number_at_agent(agent::Process in_world) {
  return in_world % kNumbers;
}

void AgentProcess::hear_of_death(agent::Process process, std::int32_t code, bool lifeline,
                                 std::optional<bool> job_ended) {
  using End = wire::Ending::Kind;
  if (!alive) return;
  const agent::Process known = number_at_agent(process);
  if (lifeline) deaths.push_back({.process = known, .detected_ns = 1, .job_ended = job_ended});
  const bool signalled = code > 128;
  deaths.push_back(
      {.process = known,
       .ending = {signalled ? End::kSignalled : End::kExited, signalled ? code - 128 : code},
       .detected_ns = 1,
       .job_ended = job_ended});
}

}  // namespace holdfast::sim
