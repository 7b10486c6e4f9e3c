#include "core/controller/membership.h"

#include <algorithm>

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

// Arrivals are told no more often than this how many have come.
constexpr Duration kArrivalsToldEvery = std::chrono::seconds(1);

Reason not_given(const wire::Register& m) {
  return {.kind = Reason::Kind::kNotGiven,
          .count = static_cast<std::int64_t>(m.attempt),
          .node_id = m.node_id};
}

// Why the sender is not the process of this seat, though it has the same incarnation; nullopt: it
// is.
std::optional<Reason> not_that_one(const wire::Seat& seat, const wire::Register& m) {
  if (m.host == seat.host && m.memory == seat.memory && m.attempt == seat.attempt) {
    return std::nullopt;
  }
  return Reason{.kind = Reason::Kind::kNotThatWorker,
                .node_id = m.node_id,
                .host = m.host,
                .other_host = seat.host};
}

}  // namespace

void Membership::attach(const Member& member, Link link, const wire::Register& m) {
  if (member.link != link) {
    const Link before = member.link;
    detach(member);
    if (before != 0) job_.dismiss(before);
  }
  Peer& peer = connections_.at(link);
  peer.has_seat = true;
  peer.rank = member.rank;
  roster_.alter(member, [&](Member& changed) {
    changed.link = changed.newest = link;
    changed.seat.memory = m.memory;
    changed.seat.endpoint = m.endpoint;
    changed.seat.host = m.host;
    changed.seat.domain = m.domain;
    changed.seat.pid = m.pid;
    changed.seat.incarnation = m.incarnation;
    changed.seat.attempt = m.attempt;
    changed.is_there = true;
    changed.serves = m.serves;
  });
  roster_.hear(member, job_.now);
  roster_.advance(member, SeatEvent::kHeard);
}

// From now on, messages on the member's connection do not count as its own.
void Membership::detach(const Member& member) {
  if (Peer* peer = connections_.find(member.link)) peer->has_seat = false;
  roster_.alter(member, [](Member& changed) { changed.link = 0; });
}

// Why this process can not take part: it shares no memory with some process of the job, and one of
// the two has no endpoint. nullopt: it can.
std::optional<Reason> Membership::elsewhere(const wire::Register& m) const {
  const Member* other = roster_.out_of_reach(m);
  if (other == nullptr) return std::nullopt;
  return Reason{.kind = Reason::Kind::kOtherHost,
                .node_id = m.node_id,
                .host = m.host,
                .other = other->seat.node_id,
                .other_host = other->seat.host};
}

void Membership::receive(Link link, const wire::Register& m) {
  if (m.protocol != wire::kProtocol) {
    return job_.refuse(
        link,
        {.kind = Reason::Kind::kOtherProtocol, .count = m.protocol, .total = wire::kProtocol});
  }
  if (job_.has_ended()) return job_end_.tell(link);
  if (m.job != formation_.job) {
    return job_.refuse(link,
                       {.kind = Reason::Kind::kOtherJob, .other = m.job, .detail = formation_.job});
  }
  if (const auto why = excess({&m.node_id, &m.host, &m.memory, &m.endpoint, &m.domain}))
    return job_.reject(link, *why);
  Peer& peer = connections_.at(link);
  const bool is_new = peer.node_id.empty();
  if (!is_new && (peer.node_id != m.node_id || peer.incarnation != m.incarnation)) {
    return job_.reject(
        link, {.kind = Reason::Kind::kTwoProcesses, .node_id = peer.node_id, .other = m.node_id});
  }
  peer.node_id = m.node_id;
  peer.incarnation = m.incarnation;
  if (!roster_.assembled()) {
    admit_early(link, m);
  } else if (const Rank rank = roster_.rank_of(m.node_id); rank == kNoRank) {
    turn_away(link, m, surplus(m));
  } else {
    admit(link, rank, m);
  }
}

// The verdict before the ranks are given. A place for which no agent speaks yet may be taken.
Membership::Verdict Membership::early_verdict_on(const wire::Register& m) const {
  using Kind = Verdict::Kind;
  if (const auto other = roster_.same_number(m.node_id)) {
    return {Kind::kNever,
            {.kind = Reason::Kind::kNodeTaken, .node_id = m.node_id, .other = *other}};
  }
  const auto found = roster_.arrivals().find(m.node_id);
  const Rank all = m.serves ? job_.options.servers : job_.workers();
  if (found == roster_.arrivals().end() &&
      roster_.arrived(m.serves) >= static_cast<std::size_t>(all)) {
    return surplus(m);
  }
  const bool is_free =
      found == roster_.arrivals().end() || found->second.seat.incarnation == m.incarnation;
  const bool is_other = found != roster_.arrivals().end() && found->second.serves != m.serves;
  const bool by_hand = is_other || m.attempt == 0 || (!is_free && found->second.seat.attempt == 0);
  if (!is_free && by_hand) {
    return {Kind::kNever,
            {.kind = Reason::Kind::kNodeTaken,
             .pid = found->second.seat.pid,
             .node_id = m.node_id,
             .host = found->second.seat.host}};
  }
  const bool is_unspoken = is_free && agents_.word_on(m.node_id) == nullptr;
  return agents_.is_given(m) || is_unspoken ? Verdict{} : Verdict{Kind::kWaits, not_given(m)};
}

void Membership::admit_early(Link link, const wire::Register& m) {
  const Verdict verdict = early_verdict_on(m);
  if (verdict.kind == Verdict::Kind::kWaits) return keep_waiting(link, m, verdict.reason);
  if (verdict.kind == Verdict::Kind::kNever) return turn_away(link, m, verdict);
  const auto found = roster_.arrivals().find(m.node_id);
  if (found != roster_.arrivals().end() && found->second.seat.incarnation == m.incarnation) {
    if (const auto why = not_that_one(found->second.seat, m)) return job_.reject(link, *why);
    if (link < found->second.newest) return job_.dismiss(link);
  }
  if (const auto why = elsewhere(m)) {
    job_end_.end(false, *why);
    return job_end_.tell(link);
  }
  attach(roster_.arrive(m.node_id), link, m);
  if (may_assemble()) return assemble();
  arrivals_are_told_ = false;
  maybe_tell_arrivals();
}

// Tells all arrivals how many have come. The rate is limited: if thousands come within a second,
// each is told once or twice.
void Membership::maybe_tell_arrivals() {
  if (arrivals_are_told_ || job_.now < arrivals_next_) return;
  for (const auto& [node_id, member] : roster_.arrivals()) {
    job_.send(member.link,
              wire::Waiting{{.kind = Reason::Kind::kAssembling,
                             .count = static_cast<std::int64_t>(roster_.arrivals().size()),
                             .total = job_.options.world_size,
                             .detail = job_.options.servers == 0 ? "" : "servers"}});
  }
  arrivals_are_told_ = true;
  arrivals_next_ = job_.now + kArrivalsToldEvery;
}

std::optional<Instant> Membership::deadline() const {
  return arrivals_are_told_ ? std::nullopt : std::optional(arrivals_next_);
}

void Membership::maybe_assemble() {
  if (may_assemble()) assemble();
}

// With several hosts, each agent has to have spoken as well: only then is the loss of its host
// noticed.
bool Membership::may_assemble() {
  if (roster_.assembled() ||
      roster_.arrivals().size() != static_cast<std::size_t>(job_.options.world_size)) {
    return false;
  }
  if (roster_.memories() <= 1) return true;
  const auto is_unspoken = [&](const auto& arrival) {
    return arrival.second.seat.attempt != 0 && agents_.speaker(arrival.first) == nullptr;
  };
  // Begin at the arrival found last time: for those before it, agents have most likely spoken.
  const auto from = roster_.arrivals().lower_bound(unspoken_);
  auto found = std::find_if(from, roster_.arrivals().end(), is_unspoken);
  if (found == roster_.arrivals().end()) {
    found = std::find_if(roster_.arrivals().begin(), from, is_unspoken);
    if (found == from) found = roster_.arrivals().end();
  }
  if (found != roster_.arrivals().end()) unspoken_ = found->first;
  return found == roster_.arrivals().end();
}

void Membership::assemble() {
  for (const auto& node_id : roster_.rank_order()) {
    const Agent* agent = agents_.speaker(node_id);
    const Member& member = roster_.give_rank(node_id, agent == nullptr ? "" : agent->agent_id);
    if (Peer* peer = connections_.find(member.link)) peer->rank = member.rank;
  }
  rendezvous_.begin({.kind = Reason::Kind::kJobStarts});
  for (Rank rank = 0; rank < roster_.world_size(); ++rank)
    apply_word_on(roster_.at(rank).seat.node_id);
  for (const auto& [link, m] : std::map<Link, wire::Register>(connections_.waiting())) {
    if (roster_.rank_of(m.node_id) != kNoRank) continue;
    connections_.stop_waiting(link);
    turn_away(link, m, surplus(m));
  }
}

// An agent gives a place to one process at a time: a later process proves that the former is dead.
// Only the agent that owns the place says which process has it. All other processes wait, until
// their own agents end them.
Membership::Verdict Membership::verdict_on(Rank rank, const wire::Register& m) const {
  using Kind = Verdict::Kind;
  const Member& member = roster_.at(rank);
  const bool is_leased = member.lease_runs();
  if (const auto why = elsewhere(m)) return {Kind::kNever, *why};
  if (m.serves && rank < job_.workers()) return surplus(m);
  if (m.attempt == 0 && member.seat.attempt != 0) {
    return {Kind::kNever, {.kind = Reason::Kind::kNewerProcess, .rank = rank}};
  }
  if (!agents_.is_given(m)) return {Kind::kWaits, is_leased ? leased(rank) : not_given(m)};
  if (member.seat.attempt != 0 && m.attempt > member.seat.attempt) return {};
  // The place of a rank that has ended and left need not be taken: the process waits for the job's
  // end.
  if (member.state == SeatState::kLeft) {
    return {Kind::kWaits, {.kind = Reason::Kind::kRankHasEnded, .rank = rank}};
  }
  return is_leased ? Verdict{Kind::kWaits, leased(rank)} : Verdict{};
}

Reason Membership::leased(Rank rank) const {
  const Member& member = roster_.at(rank);
  const auto left =
      std::chrono::ceil<std::chrono::seconds>(member.heard + job_.options.lease - job_.now);
  return {.kind = Reason::Kind::kLeased,
          .rank = rank,
          .pid = member.seat.pid,
          .count = left.count(),
          .host = member.seat.host};
}

void Membership::admit(Link link, Rank rank, const wire::Register& m) {
  const Member& member = roster_.at(rank);
  if (m.incarnation == member.seat.incarnation) {
    if (const auto why = not_that_one(member.seat, m)) return job_.reject(link, *why);
    // A process makes one connection after another, and this is not its newest.
    if (link < member.newest) return job_.dismiss(link);
    const bool is_dead = member.state == SeatState::kDead || member.state == SeatState::kOrphaned;
    if (is_dead) return job_.refuse(link, {.kind = Reason::Kind::kNewerProcess, .rank = rank});
    attach(member, link, m);
    return welcome(rank);
  }
  const Verdict verdict = verdict_on(rank, m);
  switch (verdict.kind) {
    case Verdict::Kind::kTakes:
      return take_over(rank, link, m);
    case Verdict::Kind::kWaits:
      return keep_waiting(link, m, verdict.reason);
    case Verdict::Kind::kNever:
      return turn_away(link, m, verdict);
  }
}

// Notes processes that a person may have started by mistake: surplus ones, and second ones without
// an agent. A process with an agent is known to the agent, and waits for moments only.
void Membership::note_taken(const wire::Register& m, const Reason& reason) {
  using Kind = Reason::Kind;
  const bool is_surplus = reason.kind == Kind::kPlacesTaken || reason.kind == Kind::kNodeTaken;
  const bool is_twin = reason.kind == Kind::kLeased && m.attempt == 0;
  if (!is_surplus && !is_twin) return;
  job_.emit(Note{.kind = Note::Kind::kTaken,
                 .generation = formation_.generation,
                 .version = formation_.version,
                 .reason = reason,
                 .seeker = {.node_id = m.node_id, .host = m.host, .pid = m.pid}});
}

Membership::Verdict Membership::surplus(const wire::Register& m) const {
  return {Verdict::Kind::kNever,
          {.kind = Reason::Kind::kPlacesTaken,
           .total = m.serves ? job_.options.servers : job_.workers(),
           .node_id = m.node_id,
           .detail = m.serves ? "server" : ""}};
}

void Membership::turn_away(Link link, const wire::Register& m, const Verdict& verdict) {
  note_taken(m, verdict.reason);
  job_.refuse(link, verdict.reason);
}

void Membership::keep_waiting(Link link, const wire::Register& m, Reason reason) {
  connections_.keep_waiting(link, m);
  note_taken(m, reason);
  job_.send(link, wire::Waiting{std::move(reason)});
}

// A process that waits for this place may get it now, or be refused. The newest connection comes
// first: that an older one has ended may not be known yet.
void Membership::answer_waiting(const std::string& node_id) {
  const std::set<Link> links = connections_.waiting_for(node_id);
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    const auto pending = connections_.waiting().find(*link);
    if (pending == connections_.waiting().end() || job_.has_ended()) continue;
    const wire::Register m = pending->second;
    const Rank rank = roster_.rank_of(node_id);
    if (roster_.assembled() && rank == kNoRank) return;
    const Verdict verdict = roster_.assembled() ? verdict_on(rank, m) : early_verdict_on(m);
    if (verdict.kind == Verdict::Kind::kWaits) continue;  // The process was told so already.
    connections_.stop_waiting(*link);
    roster_.assembled() ? admit(*link, rank, m) : admit_early(*link, m);
  }
}

void Membership::take_over(Rank rank, Link link, const wire::Register& m) {
  const Member& member = roster_.at(rank);
  connections_.stop_waiting(link);
  if (member.lease_runs()) died(member, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  if (job_.has_ended()) return job_end_.tell(link);
  const bool moves = member.seat.memory != m.memory;
  roster_.alter(member, [moves](Member& changed) {
    changed.seat.moved = changed.seat.moved || moves;
    changed.seat.finished = false;  // The successor has to end in good order itself.
    changed.joined = false;
  });
  // The former process's progress binds only that one.
  roster_.set_version(member, formation_.version);
  roster_.set_stepped(member, {});
  roster_.hear(member, job_.now);
  roster_.advance(member, SeatEvent::kTakenOver);
  attach(member, link, m);
  // This tells all ranks that one has a successor, and that what they do together before their
  // first step can not be completed any more (P39).
  const auto put = job_.key_values.put({.id = 0, .key = wire::kSucceeded, .value = ""});
  if (put->is_set()) job_.keeps.push_back({wire::kSucceeded, ""});
  if (formation_.stage == Stage::kStopping) {
    job_.store();
    welcome(rank);
  } else {
    // The death of a finished rank stopped nobody, but its successor has to be told where to go on.
    // The new lease and the new generation are stored together: the record must never have a new
    // lease in a running generation.
    rendezvous_.begin({.kind = Reason::Kind::kRankCameBack, .rank = rank});
  }
  job_.note(Note::Kind::kTookOver, rank, {.rank = rank, .pid = m.pid, .host = m.host});
  for (auto& answer : job_.key_values.answers(wire::kSucceeded)) job_.emit(std::move(answer));
  apply_word_on(m.node_id);
}

// Tells a process all that it may have missed.
void Membership::welcome(Rank rank) {
  rendezvous_.assign(rank);
  if (roster_.at(rank).seat.finished) job_.send(roster_.at(rank).link, wire::Farewell{});
}

void Membership::died(const Member& member, const wire::Ending& ending, bool in_good_order,
                      std::uint64_t detected_ns) {
  const std::string node_id = member.seat.node_id;
  const Rank rank = member.rank;
  if (rank == kNoRank) {  // Before the ranks are given, a process just makes room.
    job_.dismiss(member.link);
    detach(member);
    roster_.forget_arrival(node_id);
    return answer_waiting(node_id);
  }
  if (!member.lease_runs() && member.state != SeatState::kSilent) return;
  roster_.alter(member, [&](Member& changed) {
    changed.ending = ending;
    changed.ended_pid = changed.seat.pid;
    changed.detected_ns = detected_ns;
    changed.heard = job_.now;
  });
  roster_.advance(member, in_good_order ? SeatEvent::kEndedWell : SeatEvent::kDied);
  if (!in_good_order) {  // Messages from it may still be under way: they no longer count.
    detach(member);
    rendezvous_.rank_lost(
        rank,
        {.kind = Reason::Kind::kRankLost, .rank = rank, .pid = member.seat.pid, .ending = ending},
        detected_ns);
  } else if (member.state == SeatState::kDeserted && member.joined && !job_.has_ended()) {
    job_end_.end(false,
                 {.kind = Reason::Kind::kEndedEarly, .rank = rank, .version = member.version});
  } else {
    job_end_.maybe_all_left();
    plan_();
  }
  answer_waiting(node_id);
}

void Membership::check_leases() {
  for (const Rank rank : roster_.take_silent(job_.now)) lose(roster_.at(rank));
  job_end_.maybe_all_left();
}

// The member's lease has run out, or its host is lost.
void Membership::lose(const Member& member) {
  const Rank rank = member.rank;
  roster_.advance(member, SeatEvent::kLeaseOver);
  roster_.alter(member,
                [](Member& changed) { changed.ending = {.kind = wire::Ending::Kind::kNotHeard}; });
  evict(member);
  if (!member.seat.finished) {
    rendezvous_.rank_lost(rank,
                          {.kind = Reason::Kind::kRankLost,
                           .rank = rank,
                           .pid = member.seat.pid,
                           .ending = member.ending},
                          0);
  }
  answer_waiting(member.seat.node_id);
}

// Before the ranks are given, another agent has the place now. It counts attempts from 1, so the
// former process and its attempt are forgotten.
void Membership::forget_arrival(const std::string& node_id) {
  if (const auto early = roster_.arrivals().find(node_id); early != roster_.arrivals().end()) {
    died(early->second, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  }
}

void Membership::evict(const Member& member) {
  const PlaceWord* word = agents_.word_on(member.seat.node_id);
  if (word == nullptr) return;
  job_.send(word->link, wire::Evict{member.seat.node_id, member.seat.incarnation});
}

// An agent's word on a process may have come before the process's own Register: apply it now.
void Membership::apply_word_on(const std::string& node_id) {
  if (const PlaceWord* word = agents_.word_on(node_id)) apply_word(wire::PlaceState(word->place));
}

void Membership::apply_word(const wire::PlaceState& place) {
  const Rank rank = roster_.rank_of(place.node_id);
  const auto early = roster_.arrivals().find(place.node_id);
  if (rank == kNoRank && early == roster_.arrivals().end()) return answer_waiting(place.node_id);
  const Member& member = rank != kNoRank ? roster_.at(rank) : early->second;
  tell_how(member, place);
  const wire::Seat& seat = member.seat;
  const bool same = place.attempt == seat.attempt && place.incarnation == seat.incarnation;
  // The agent has given the place to a later process, or never to this one.
  const bool replaced = seat.attempt != 0 && place.attempt >= seat.attempt && !same;
  const bool well = place.ending == wire::Ending{wire::Ending::Kind::kExited, 0};
  if (same && place.alive) {
    const bool lost =
        member.ending.kind == wire::Ending::Kind::kNotHeard || member.state == SeatState::kDead;
    if (lost && !member.lease_runs()) evict(member);  // The agent may have missed the first Evict.
  } else if (same || replaced) {
    died(member, place.ending, same && well, place.detected_ns);
    if (rank == kNoRank) return;  // The arrival is forgotten: `member` is gone.
    if (member.state == SeatState::kOrphaned && !place.alive && well) {
      // The successor has left without a word, and its agent gives the place to nobody else.
      roster_.advance(member, SeatEvent::kEndedWell);
      job_end_.maybe_all_left();
    }
  }  // Otherwise the agent said this before this incarnation was accepted.
  answer_waiting(place.node_id);
}

// Notes how a process died. Its agent reports a death at once, but learns the cause only when the
// process's memory is freed.
void Membership::tell_how(const Member& member, const wire::PlaceState& place) {
  if (place.detected_ns == 0 || place.detected_ns != member.detected_ns) return;
  const Rank rank = roster_.rank_of(place.node_id);
  if (place.ending == member.ending || rank == kNoRank) return;
  roster_.alter(member, [&](Member& changed) { changed.ending = place.ending; });
  job_.note(Note::Kind::kHow, rank,
            {.kind = Reason::Kind::kRankLost,
             .rank = rank,
             .pid = member.ended_pid,
             .ending = member.ending});
}

}  // namespace holdfast::controller
