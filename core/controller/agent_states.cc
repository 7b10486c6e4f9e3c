#include "core/controller/agent_states.h"

#include <utility>

namespace holdfast::controller {

using wire::Reason;

namespace {

constexpr std::size_t kMaxSparesMore = 256;  // Of an agent, than the job has places.

// Why this can not be the table of an agent of the job, which has so many places.
std::optional<Reason> too_much(const wire::AgentState& m, std::size_t places) {
  const auto more_than = [](std::size_t count, std::size_t most, const char* what) {
    const Reason why{.kind = Reason::Kind::kTooMuch,
                     .count = static_cast<std::int64_t>(count),
                     .total = static_cast<std::int64_t>(most),
                     .detail = what};
    return count > most ? std::optional(why) : std::nullopt;
  };
  auto why = excess({&m.agent_id, &m.host});
  if (!why) why = more_than(m.places.size(), places, "places");
  if (!why) why = more_than(m.spares.size(), places + kMaxSparesMore, "spares");
  for (const auto& place : m.places) {
    if (!why) why = excess({&place.node_id});
  }
  for (const auto& spare : m.spares) {
    if (!why) why = excess({&spare.node_id});
  }
  return why;
}

}  // namespace

AgentStates::AgentStates(Job& job, JobEnd& job_end, const Addresses& addresses,
                         Rendezvous& rendezvous, Owners& owners, Transfers& transfers,
                         HostWatch& hosts, Recovery& recovery)
    : job_(job),
      agents_(job.agents),
      job_end_(job_end),
      addresses_(addresses),
      rendezvous_(rendezvous),
      owners_(owners),
      transfers_(transfers),
      hosts_(hosts),
      recovery_(recovery) {}

void AgentStates::receive(Link link, const wire::AgentState& m) {
  if (m.protocol != wire::kProtocol) {
    return job_.refuse(
        link,
        {.kind = Reason::Kind::kOtherProtocol, .count = m.protocol, .total = wire::kProtocol});
  }
  if (m.job != job_.formation.job) {
    return job_.refuse(
        link, {.kind = Reason::Kind::kOtherJob, .other = m.job, .detail = job_.formation.job});
  }
  if (job_.has_ended()) {
    if (!job_.is_own_agent(m.agent_id)) return job_end_.tell(link);
    return job_end_.tell_own_agent(link);
  }
  if (auto why = too_much(m, static_cast<std::size_t>(job_.options.world_size))) {
    return job_.reject(link, *std::move(why));
  }
  // The same agent may come back before the end of its former connection is known.
  if (const Link former = agents_.link_of(m.agent_id); former != 0 && former != link) {
    job_.dismiss(former);
    forget(former);
  }
  Agent& agent = agents_.enter(link, m.agent_id);
  const bool is_new = !std::exchange(agent.is_told, true);
  if (is_new) recovery_.agent_came();
  agent.host = m.host;
  agent.takes = m.takes;
  agent.spares = m.spares;
  hosts_.hear(agent);
  hosts_.look_at(job_.now + job_.options.host_silence);
  if (agent.book != addresses_.name()) {
    rendezvous_.receive(link, wire::AskAddresses{});
    if (job_.connections.at(link).dismissed) return;  // It has asked for more than it may.
  }
  const auto former = agents_.take_words(link);
  agents_.set_asks(link, m.places);
  agent.has_others = false;
  if (is_new) owners_.tell_who_has_them(link);
  owners_.take_up(link, former);
  owners_.assign_free_places();
  owners_.answer_askers();
  transfers_.maybe_balance();
  job_end_.maybe_nobody_came();
}

void AgentStates::forget(Link link) {
  auto agent = agents_.remove(link);
  if (!agent) return;
  owners_.set_changed();
  if (!agent->is_silent) hosts_.miss(*std::move(agent));
}

}  // namespace holdfast::controller
