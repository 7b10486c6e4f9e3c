#include "sim/deadlines.h"

#include "sim/exchange.h"

namespace holdfast::sim {

// With hosts, heartbeats are more frequent: the scheduler notices a lost host by its agent's.
Duration Deadlines::beat_every() const {
  return job_.setup.hosts ? kBeat / 4 : kBeat;
}

std::optional<Instant> Deadlines::next() const {
  std::optional<Instant> next;
  const auto consider = [&](Instant at) {
    if (at > job_.now && (!next || at < *next)) next = at;
  };
  if (job_.scheduler.machine) {
    consider(next_beat_);
    if (job_.scheduler.deadline) consider(*job_.scheduler.deadline);
    if (job_.scheduler.exits_at) consider(*job_.scheduler.exits_at);
    consider(job_.scheduler.paused_until);
  }
  for (const Worker& worker : job_.workers) {
    if (!worker.alive) continue;
    consider(worker.paused_until);
    if (const auto end = ValueExchange::ends(worker)) consider(*end);
    if (worker.addresses_due) consider(*worker.addresses_due);
    if (worker.trainer && worker.trainer->deadline()) consider(*worker.trainer->deadline());
    if (!job_.setup.agent && worker.link == kNone) consider(worker.gives_up_at);
  }
  for (Index i = connections_.first_open(); i < job_.links.size(); ++i) {
    consider(job_.links[i].stalled_until);
  }
  for (const auto& agent : job_.agents) {
    if (!agent.runs()) continue;
    for (const Instant at : agent.graces) consider(at);
    for (const auto& pause : agent.pauses) consider(pause.until);
    if (agent.writing) consider(agent.writing->until);
    if (agent.next_look) consider(*agent.next_look);
    if (agent.link == kNone) {
      consider(agent.connects_at);
      consider(agent.gives_up_at);
    }
    consider(agent.away_until);
  }
  for (const auto& errand : job_.person.workers) consider(errand.at);
  if (job_.is_paused()) consider(job_.person.resumes_at);
  return next;
}

bool Deadlines::take_beat() {
  if (job_.now < next_beat_) return false;
  while (next_beat_ <= job_.now) next_beat_ += beat_every();
  return true;
}

}  // namespace holdfast::sim
