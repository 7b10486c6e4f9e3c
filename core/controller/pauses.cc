#include "core/controller/pauses.h"

#include <algorithm>
#include <utility>

#include "core/controller/stalls.h"

namespace holdfast::controller {

using wire::Reason;
using Kind = Reason::Kind;

void Pauses::receive(Link link, const wire::Pause& m) {
  switch (job_.connections.at(link).kind) {
    case wire::PeerKind::kObserver:
      return order(link, m.on);
    case wire::PeerKind::kAgent:
      if (!m.on && job_.agents.find(link) != nullptr) go_on();
      return;
    default:
      if (job_.connections.rank_at(link) == kNoRank || job_.has_ended()) return;
      if (job_.formation.is_paused() && m.pauses == job_.formation.pauses) stand_still(m.version);
  }
}

void Pauses::order(Link link, bool on) {
  if (job_.has_ended()) return job_.send(link, wire::Paused{job_.formation.end});
  const bool is_news = on != job_.formation.is_paused();
  if (is_news) change();
  const std::int64_t again = is_news ? 0 : 1;
  if (!on) return job_.send(link, wire::Paused{{.kind = Kind::kUnpaused, .count = again}});
  if (stands_at_) {
    const Reason told{.kind = Kind::kPaused, .count = again, .version = *stands_at_};
    return job_.send(link, wire::Paused{told});
  }
  if (asks_.empty()) answer_by_ = job_.now + kPatience;
  asks_.insert(link);
}

void Pauses::go_on() {
  if (job_.formation.is_paused() && !job_.has_ended()) change();
}

// Ranks that have no part in a running generation yet hear it once they go on.
void Pauses::change() {
  ++job_.formation.pauses;
  job_.store();
  stands_at_.reset();
  const bool on = job_.formation.is_paused();
  for (Rank rank = 0; rank < job_.roster.world_size(); ++rank) {
    const bool goes = job_.formation.stage == wire::Stage::kRunning;
    if (goes && !job_.roster.at(rank).seat.finished) rendezvous_.assign(rank);
  }
  job_.tell_agents(wire::Pause{.on = on});
  if (on) return;
  job_.waits_count_from = job_.now + kNextLook;
  answer({.kind = Kind::kUnpaused});
  remark({.kind = Kind::kUnpaused});
}

void Pauses::stand_still(Version version) {
  if (stands_at_) return;
  stands_at_ = version;
  const Reason told{.kind = Kind::kPaused, .version = version};
  answer(told);
  remark(told);
}

// An agent that comes takes the job for one that goes on.
void Pauses::agent_came(Link link) {
  if (job_.formation.is_paused()) job_.send(link, wire::Pause{.on = true});
}

void Pauses::check() {
  if (!asks_.empty() && job_.now >= answer_by_) answer({.kind = Kind::kPausing});
}

void Pauses::answer(const Reason& reason) {
  for (const Link link : std::exchange(asks_, {})) job_.send(link, wire::Paused{reason});
}

// Users are told of each pause and of its end, once. A former scheduler may have done so already.
void Pauses::remark(const Reason& reason) {
  const auto& all = remarks_.all();
  const auto last = std::find_if(all.rbegin(), all.rend(), [](const wire::Remarked& one) {
    return one.what.kind == Kind::kPaused || one.what.kind == Kind::kUnpaused;
  });
  const Kind newest = last == all.rend() ? Kind::kUnpaused : last->what.kind;
  if (newest != reason.kind && !remarks_.is_full()) remarks_.tell(kNoRank, reason);
}

}  // namespace holdfast::controller
