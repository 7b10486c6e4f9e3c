#include "core/controller/machine.h"

#include <algorithm>
#include <array>

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

Machine::Machine(Options options, std::optional<wire::Formation> stored)
    : options_(std::move(options)), roster_(options_.lease, options_.replacement_timeout) {
  if (stored) {
    formation_ = std::move(*stored);
  } else {
    formation_.job = options_.job;
    formation_.run_id = options_.run_id;
  }
}

Actions Machine::step(Instant now, const Event& event) {
  now_ = now;
  std::visit([&](const auto& e) { on(e); }, event);
  for (const Link link : std::exchange(dismissed_, {})) forget_agent(link);
  return outbox_.take();
}

wire::Formation Machine::formation() const {
  wire::Formation whole = formation_;
  if (!roster_.assembled()) return whole;
  whole.roster.clear();
  for (const auto& member : roster_.each()) whole.roster.push_back(member.seat);
  return whole;
}

void Machine::store() {
  Store store{
      .formation = formation_, .seats = {}, .kept = std::exchange(keeps_, {}), .writers = {}};
  const std::set<Rank> changed = roster_.take_changed();
  if (!std::exchange(roster_stored_, roster_stored_ || roster_.assembled())) {
    store.formation = formation();
  } else {
    for (const Rank rank : changed) store.seats.emplace(rank, roster_.at(rank).seat);
  }
  emit(std::move(store));
}

void apply(const Store& store, wire::Formation& record) {
  if (store.formation) {
    auto roster = std::exchange(record.roster, {});
    record = *store.formation;
    if (record.roster.empty()) record.roster = std::move(roster);
  }
  for (const auto& [rank, seat] : store.seats) {
    record.roster.at(static_cast<std::size_t>(rank)) = seat;
  }
}

void Machine::on(const Stored&) {
  outbox_.stored();
}

std::size_t Machine::unanswered(Link link) const {
  return key_values_.pending(link) + outbox_.held_answers(link);
}

void Machine::note(Note::Kind kind, Rank rank, const Reason& reason, std::uint64_t detected_ns) {
  emit(Note{kind, formation_.generation, formation_.version, rank, reason, detected_ns});
}

void Machine::send(Link link, wire::Message message) {
  const auto peer = peers_.find(link);
  if (peer != peers_.end() && !peer->second.dismissed) emit(Send{link, std::move(message)});
}

void Machine::tell_agents(const wire::Message& message) {
  for (const auto& [link, state] : agents_.here()) send(link, message);
}

void Machine::on(const Started& e) {
  started_ = now_;
  waiting_since_ = now_;
  for (const auto& kept : std::exchange(formation_.roster, {})) {
    const bool resumed = formation_.stage == Stage::kRunning;
    const bool is_empty = kept.incarnation == 0 && !kept.finished;
    roster_.seat({.seat = kept,
                  .state = kept.finished ? SeatState::kFinished
                           : is_empty    ? SeatState::kDead
                                         : SeatState::kHeld,
                  .joined = resumed,
                  .heard = now_,
                  .version = kept.finished ? kept.version : formation_.version});
  }
  roster_stored_ = roster_.assembled();
  ended_ = ended_rank();
  if (formation_.stage != Stage::kEnded) key_values_.restore(e.kept, e.writers);
  miss_all_agents();
  if (formation_.stage == Stage::kEnded) {
    emit(End{formation_.success, formation_.end});
    wait_for_agent();
    if (!leaves_at_) leave();
  } else if (roster_.assembled() && formation_.stage != Stage::kRunning) {
    // An order of the unfinished generation may have been carried out: ask anew, under a new
    // number.
    begin({.kind = Reason::Kind::kSchedulerRestarted});
  }
}

void Machine::on(const ProvenDead& e) {
  const wire::Ending gone{.kind = wire::Ending::Kind::kGone};
  if (const auto early = roster_.arrivals().find(e.node_id); early != roster_.arrivals().end()) {
    if (early->second.seat.incarnation == e.incarnation) died(early->second, gone, false, 0);
    return;
  }
  const Rank rank = roster_.rank_of(e.node_id);
  if (rank == kNoRank || roster_.at(rank).seat.incarnation != e.incarnation) return;
  died(roster_.at(rank), gone, roster_.at(rank).seat.finished, 0);
}

void Machine::on(const TimePassed&) {
  const bool asks = formation_.stage == Stage::kAssembling && !agents_.askers().empty();
  if (asks && now_ >= askers_next_) {
    owners_have_changed_ = true;  // By silence alone.
    answer_askers();              // The job may begin by that, or end.
  }
  if (formation_.stage == Stage::kEnded) {
    if (leaves_at_ && now_ >= *leaves_at_) leave();
    return;
  }
  if (formation_.stage == Stage::kAssembling) {
    if (now_ < started_ + options_.topology_timeout) return maybe_tell_arrivals();
    return end(false, {.kind = Reason::Kind::kTooFewCame,
                       .count = static_cast<std::int64_t>(roster_.arrivals().size()),
                       .total = options_.world_size,
                       .awaited = awaited()});
  }
  check_hosts();
  check_leases();
  maybe_tell_progress();
  if (waits_for_replacement() && now_ >= waiting_since_ + options_.replacement_timeout) {
    end(false, {.kind = Reason::Kind::kNotFormedInTime, .awaited = awaited()});
  }
}

std::optional<Instant> Machine::deadline() const {
  if (formation_.stage == Stage::kEnded) return left_ ? std::nullopt : leaves_at_;
  std::optional<Instant> next;
  const auto consider = [&](Instant instant) { next = next ? std::min(*next, instant) : instant; };
  if (formation_.stage == Stage::kAssembling) {
    consider(started_ + options_.topology_timeout);
    if (!arrivals_are_told_) consider(arrivals_next_);
    if (!agents_.askers().empty() && options_.host_silence != Duration{}) consider(askers_next_);
    return next;
  }
  if (waits_for_replacement()) consider(waiting_since_ + options_.replacement_timeout);
  if (const auto lease = roster_.deadline()) consider(*lease);
  if (has_progress_to_tell()) consider(progress_next_);
  if (watches_hosts() && hosts_look_at_) consider(*hosts_look_at_);
  return next;
}

// ---- Key-values ---------------------------------------------------------------------------------

// Who asks needs no rank. What is said of a value waits, as everything does, until it is durable.
void Machine::receive(Link link, const wire::Put& m) {
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  if (m.key == wire::kSucceeded) return reject_word(link, m);  // The scheduler alone puts that.
  // Whoever belongs to the job comes again, and says it again.
  if (unanswered(link) >= kMaxUnanswered || outbox_.unstored_bytes() > kMaxStoredBytes) {
    return dismiss(link);
  }
  const auto put = key_values_.put(m);
  if (!put) return;
  if (put->outcome == KeyValues::Outcome::kSet) {
    Store store{
        .formation = {}, .seats = {}, .kept = {{m.key, m.value, put->version}}, .writers = {}};
    if (m.writer != 0) store.writers = {{m.writer, m.id, put->version}};
    emit(std::move(store));
  }
  wire::Kept kept{.id = m.id, .reason = {}, .is_set = put->is_set(), .version = put->version};
  if (put->outcome == KeyValues::Outcome::kNoRoom) {
    kept.reason = {.kind = Reason::Kind::kNoRoom,
                   .count = static_cast<std::int64_t>(kMaxStoredBytes),
                   .total = static_cast<std::int64_t>(kMaxStoredKeys)};
  }
  send(link, std::move(kept));
  if (put->outcome != KeyValues::Outcome::kSet) return;
  for (auto& answer : key_values_.answers(m.key)) emit(std::move(answer));
}

void Machine::receive(Link link, const wire::Get& m) {
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  Found found;
  if (key_values_.get(link, m, found)) {
    Action answer = found ? Action(Answer{link, m.id, std::move(found)})
                          : Action(Send{link, wire::Got{.id = m.id}});
    // What is durable may be told while something else is being stored.
    if (!outbox_.is_unstored(m.keys)) return outbox_.add_at_once(std::move(answer));
    emit(std::move(answer));
  }
  if (unanswered(link) > kMaxUnanswered) dismiss(link);
}

void Machine::on(const Interrupted& e) {
  if (formation_.stage == Stage::kEnded || options_.by_agent || options_.comes_back) return;
  end(false, {.kind = Reason::Kind::kSchedulerInterrupted, .count = e.signal});
}

}  // namespace holdfast::controller
