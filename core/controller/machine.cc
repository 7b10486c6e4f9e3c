#include "core/controller/machine.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <variant>

namespace holdfast::controller {

using wire::PeerKind;
using wire::Reason;
using wire::Stage;

namespace {

template <class... Kinds>
bool is_any(const wire::Message& message) {
  return (std::holds_alternative<Kinds>(message) || ...);
}

// Whether a process of this kind may send this message (P40). The shell answers a StatusQuery
// itself.
bool is_for(PeerKind kind, const wire::Message& message) {
  switch (kind) {
    case PeerKind::kWorker:
      return is_any<wire::Register, wire::Report, wire::Repaired, wire::Progress, wire::GroupLost,
                    wire::Remark, wire::Finished, wire::Failed, wire::Put, wire::Get,
                    wire::Heartbeat, wire::AskAddresses, wire::Snapshot, wire::Pause>(message);
    case PeerKind::kAgent:
      return is_any<wire::AgentState, wire::Failed, wire::Put, wire::Get, wire::Heartbeat,
                    wire::AskAddresses, wire::Snapshot, wire::Pause>(message);
    case PeerKind::kObserver:
      return is_any<wire::Heartbeat, wire::Move, wire::Drill, wire::Snapshot, wire::Pause>(message);
    case PeerKind::kPeer:
      return false;
  }
  return false;
}

// An agent may have this many spares more than the job has places.
constexpr std::size_t kMaxSparesMore = 256;

// Why no agent of a job with this many places can have such a table; nullopt: one can.
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
  if (!why) why = more_than(m.rehearsals.size(), places, "rehearsals");
  for (const auto& rehearsal : m.rehearsals) {
    if (!why) why = excess({&rehearsal.node_id});
  }
  if (!why) why = more_than(m.standing.size(), places, "ranks that stand still");
  for (const auto& standing : m.standing) {
    if (!why) why = excess({&standing.node_id});
  }
  return why;
}

}  // namespace

Machine::Machine(Options options, std::optional<wire::Formation> stored)
    : job_(std::move(options), std::move(stored)) {}

Actions Machine::step(Instant now, const Event& event) {
  job_.now = now;
  std::visit([&](const auto& e) { on(e); }, event);
  for (const Link link : job_.connections.take_dismissed()) forget_agent(link);
  for (const Link link : job_.agents.take_silenced()) snapshots_.lost(link);
  snapshots_.go_on();
  return job_.outbox.take();
}

std::optional<Instant> Machine::deadline() const {
  if (job_.has_ended()) return job_end_.deadline();
  std::optional<Instant> next;
  const auto consider = [&](std::optional<Instant> instant) {
    if (instant) next = next ? std::min(*next, *instant) : instant;
  };
  if (stage() == Stage::kAssembling) {
    consider(job_.started + job_.options.topology_timeout);
    consider(membership_.deadline());
    consider(owners_.deadline());
    consider(pauses_.deadline());
    return next;
  }
  consider(rendezvous_.deadline());
  consider(job_.roster.deadline());
  consider(recovery_.deadline());
  consider(hosts_.deadline());
  consider(stalls_.deadline());
  consider(pauses_.deadline());
  consider(snapshots_.deadline());
  return next;
}

bool Machine::waits_for_place(const std::string& node_id, std::int64_t pid) const {
  const std::set<Link> links = job_.connections.waiting_for(node_id);
  return std::any_of(links.begin(), links.end(),
                     [&](Link link) { return job_.connections.waiting().at(link).pid == pid; });
}

void Machine::on(const Started& e) {
  job_.started = job_.now;
  for (const auto& kept : std::exchange(job_.formation.roster, {})) {
    const bool resumed = stage() == Stage::kRunning;
    const bool is_empty = kept.incarnation == 0 && !kept.finished;
    job_.roster.seat({.seat = kept,
                      .state = kept.finished ? SeatState::kFinished
                               : is_empty    ? SeatState::kDead
                                             : SeatState::kHeld,
                      .joined = resumed,
                      .heard = job_.now,
                      .version = kept.finished ? kept.version : job_.formation.version});
  }
  job_.is_roster_stored = assembled();
  rendezvous_.go_on();
  if (!job_.has_ended()) job_.key_values.restore(e.kept, e.writers);
  remarks_.restore(e.remarks);
  hosts_.miss_all();
  if (job_.has_ended()) {
    job_end_.go_on();
  } else if (assembled() && stage() != Stage::kRunning) {
    // An order of the unfinished generation may have been carried out: ask all ranks anew, under a
    // new number.
    rendezvous_.begin({.kind = Reason::Kind::kSchedulerRestarted});
  }
}

void Machine::on(const ProvenDead& e) {
  const Member* member = find(e.node_id);
  if (member == nullptr || member->seat.incarnation != e.incarnation) return;
  const bool in_good_order = assembled() && member->seat.finished;
  membership_.died(*member, {.kind = wire::Ending::Kind::kGone}, in_good_order, 0);
}

void Machine::on(const TimePassed&) {
  owners_.answer_askers_in_time();
  pauses_.check();
  if (job_.has_ended()) return job_end_.leave_in_time();
  if (stage() == Stage::kAssembling) {
    if (job_.now < job_.started + job_.options.topology_timeout) {
      return membership_.maybe_tell_arrivals();
    }
    return job_end_.end(false, {.kind = Reason::Kind::kTooFewCame,
                                .count = static_cast<std::int64_t>(arrivals().size()),
                                .total = job_.options.world_size,
                                .awaited = rendezvous_.awaited()});
  }
  hosts_.check();
  membership_.check_leases();
  recovery_.maybe_tell_progress();
  stalls_.check();
  if (const auto patience = rendezvous_.deadline(); patience && job_.now >= *patience) {
    job_end_.end(false, {.kind = Reason::Kind::kNotFormedInTime, .awaited = rendezvous_.awaited()});
  }
}

void Machine::on(const Interrupted& e) {
  if (job_.has_ended() || job_.options.by_agent || job_.options.comes_back) return;
  job_end_.end(false, {.kind = Reason::Kind::kSchedulerInterrupted, .count = e.signal});
}

// ---- Who is connected ---------------------------------------------------------------------------

void Machine::on(const Connected& e) {
  job_.connections.connect(e.link, e.kind);
  if (job_.has_ended()) job_end_.tell(e.link);
}

const Member* Machine::member_on(const Peer& peer) const {
  if (!peer.has_seat) return nullptr;
  return peer.rank != kNoRank ? &job_.roster.at(peer.rank) : &arrivals().at(peer.node_id);
}

void Machine::on(const Received& e) {
  const Peer* peer = job_.connections.open(e.link);
  if (peer == nullptr) return;
  job_.unix_ms = e.unix_ms;
  if (!is_for(peer->kind, e.message)) return reject_word(e.link, e.message);
  if (Agent* agent = job_.agents.find(e.link)) {
    hosts_.hear(*agent);
    agent->beats = agent->beats || std::holds_alternative<wire::Heartbeat>(e.message);
  }
  if (const Member* member = member_on(*peer)) {
    // This counts before the ranks are given as well: the lease runs from the last message.
    job_.roster.hear(*member, job_.now);
    // The member lives after all. Its report was dropped when its lease ran out: ask again.
    if (member->state == SeatState::kSilent) {
      hosts_.hear_member(*member);
      job_.roster.advance(*member, SeatEvent::kHeard);
      if (stage() == Stage::kStopping) rendezvous_.assign(peer->rank);
    }
  }
  std::visit([&](const auto& message) { receive(e.link, message); }, e.message);
}

// The peer is told why: it would only send the same on its next connection.
void Machine::on(const Unreadable& e) {
  const Peer* peer = job_.connections.open(e.link);
  if (peer == nullptr) return;
  Reason why{.kind = Reason::Kind::kUnreadable, .node_id = peer->node_id, .detail = e.why};
  if (const Agent* agent = job_.agents.find(e.link)) {
    why.other = agent->agent_id;
    why.host = agent->host;
  }
  job_.reject(e.link, std::move(why));
}

void Machine::on(const Closed& e) {
  forget_agent(e.link);
  snapshots_.closed(e.link);
  pauses_.closed(e.link);
  transfers_.closed(e.link);
  job_.connections.stop_waiting(e.link);
  owners_.assign_free_places();
  owners_.answer_askers();
  job_.key_values.closed(e.link);
  job_.outbox.closed(e.link);
  const auto peer = job_.connections.close(e.link);
  if (!peer || !peer->has_seat) return;
  if (peer->rank == kNoRank) {  // Before the ranks are given, a process just makes room.
    job_.roster.forget_arrival(peer->node_id);
    return membership_.answer_waiting(peer->node_id);
  }
  const Member& member = job_.roster.at(peer->rank);
  // The lease runs on: the end of a connection does not prove a death.
  job_.roster.alter(member, [](Member& changed) { changed.link = 0; });
  hosts_.hang_up(member);
  // Without an agent nobody reports the exit code: a finished process that hangs up has left.
  if (member.seat.attempt == 0) job_.roster.advance(member, SeatEvent::kHungUp);
  job_end_.maybe_all_left();
}

void Machine::reject_word(Link link, const wire::Message& message) {
  job_.reject(link, {.kind = Reason::Kind::kNotItsWord,
                     .count = static_cast<std::int64_t>(message.index()) + 1,
                     .total = static_cast<std::int64_t>(job_.connections.at(link).kind)});
}

// ---- Agents -------------------------------------------------------------------------------------

void Machine::receive(Link link, const wire::AgentState& m) {
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
  if (const Link former = job_.agents.link_of(m.agent_id); former != 0 && former != link) {
    job_.dismiss(former);
    forget_agent(former);
  }
  Agent& agent = job_.agents.enter(link, m.agent_id);
  const bool is_new = !std::exchange(agent.is_told, true);
  if (is_new) {
    agent.remarks = m.remarks;
    recovery_.agent_came();
    pauses_.agent_came(link);
  }
  agent.host = m.host;
  agent.takes = m.takes;
  agent.spares = m.spares;
  agent.rehearsals = m.rehearsals;
  stalls_.hear(std::exchange(agent.standing, m.standing), agent);
  hosts_.hear(agent);
  hosts_.look_at(job_.now + job_.options.host_silence);
  if (agent.book != addresses_.name()) {
    rendezvous_.receive(link, wire::AskAddresses{});
    if (job_.connections.at(link).dismissed) return;  // Too many unanswered questions.
  }
  const auto former = job_.agents.take_words(link);
  job_.agents.set_asks(link, m.places);
  agent.has_others = false;
  if (is_new) owners_.tell_who_has_them(link);
  owners_.take_up(link, former);
  owners_.assign_free_places();
  owners_.answer_askers();
  transfers_.maybe_balance();
  job_end_.maybe_nobody_came();
}

void Machine::forget_agent(Link link) {
  auto agent = job_.agents.remove(link);
  if (!agent) return;
  snapshots_.lost(link);
  owners_.set_changed();
  if (!agent->is_silent) hosts_.miss(*std::move(agent));
}

// A job that is to end makes its last steps first.
void Machine::receive(Link link, const wire::Snapshot& m) {
  const bool stops = m.word == wire::SnapshotWord::kStop &&
                     job_.connections.at(link).kind == PeerKind::kObserver &&
                     (job_.options.snapshots.wanted || m.version == 0);
  if (stops) pauses_.go_on();
  snapshots_.receive(link, m);
}

// ---- Key-values ---------------------------------------------------------------------------------

// The sender needs no rank. The answer waits in the outbox until the value is durable.
void Machine::receive(Link link, const wire::Put& m) {
  if (job_.has_ended()) return job_end_.tell(link);
  if (m.key == wire::kSucceeded) return reject_word(link, m);  // The scheduler alone puts that.
  // A process of the job connects again and repeats its Put.
  if (job_.unanswered(link) >= kMaxUnanswered || job_.outbox.unstored_bytes() > kMaxStoredBytes) {
    return job_.dismiss(link);
  }
  const auto put = job_.key_values.put(m);
  if (!put) return;
  if (put->outcome == KeyValues::Outcome::kSet) {
    Store store{
        .formation = {}, .seats = {}, .kept = {{m.key, m.value, put->version}}, .writers = {}};
    if (m.writer != 0) store.writers = {{m.writer, m.id, put->version}};
    job_.emit(std::move(store));
  }
  wire::Kept kept{.id = m.id, .reason = {}, .is_set = put->is_set(), .version = put->version};
  if (put->outcome == KeyValues::Outcome::kNoRoom) {
    kept.reason = {.kind = Reason::Kind::kNoRoom,
                   .count = static_cast<std::int64_t>(kMaxStoredBytes),
                   .total = static_cast<std::int64_t>(kMaxStoredKeys)};
  }
  job_.send(link, std::move(kept));
  if (put->outcome != KeyValues::Outcome::kSet) return;
  for (auto& answer : job_.key_values.answers(m.key)) job_.emit(std::move(answer));
}

void Machine::receive(Link link, const wire::Get& m) {
  if (job_.has_ended()) return job_end_.tell(link);
  Found found;
  if (job_.key_values.get(link, m, found)) {
    Action answer = found ? Action(Answer{link, m.id, std::move(found)})
                          : Action(Send{link, wire::Got{.id = m.id}});
    // A value that is durable may be told while something else is being stored.
    if (!job_.outbox.is_unstored(m.keys)) return job_.outbox.add_at_once(std::move(answer));
    job_.emit(std::move(answer));
  }
  if (job_.unanswered(link) > kMaxUnanswered) job_.dismiss(link);
}

}  // namespace holdfast::controller
