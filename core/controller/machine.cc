#include "core/controller/machine.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

Machine::Machine(Options options, std::optional<wire::Formation> stored)
    : options_(std::move(options)) {
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
  return std::exchange(actions_, {});
}

wire::Formation Machine::formation() const {
  wire::Formation whole = formation_;
  if (members_.empty()) return whole;
  whole.roster.clear();
  for (const auto& member : members_) whole.roster.push_back(member.seat);
  return whole;
}

void Machine::emit(Action action) {
  // held_ begins with a Store that was handed out and not answered; the rest waits behind it.
  if (!held_.empty()) {
    held_.push_back(std::move(action));
    return;
  }
  if (std::holds_alternative<Store>(action)) held_.push_back(Store{});
  actions_.push_back(std::move(action));
}

void Machine::on(const Stored&) {
  HF_ASSERT(!held_.empty());
  held_.pop_front();
  while (!held_.empty()) {
    // A Store is handed out, and its place kept: the rest waits for it.
    const bool waits = std::holds_alternative<Store>(held_.front());
    actions_.push_back(std::exchange(held_.front(), Store{}));
    if (waits) return;
    held_.pop_front();
  }
}

void Machine::note(Note::Kind kind, Rank rank, const Reason& reason, std::uint64_t detected_ns) {
  emit(Note{kind, formation_.generation, formation_.version, rank, reason, detected_ns});
}

void Machine::send(Link link, wire::Message message) {
  if (link != 0) emit(Send{link, std::move(message)});
}

void Machine::tell_agents(const wire::Message& message) {
  for (const auto& [link, state] : agents_) send(link, message);
}

void Machine::on(const Started& e) {
  started_ = now_;
  waiting_since_ = now_;
  for (auto& seat : std::exchange(formation_.roster, {})) {
    const bool resumed = formation_.stage == Stage::kRunning;
    const auto rank = static_cast<Rank>(members_.size());
    ranks_[seat.node_id] = rank;
    members_.push_back({.seat = seat,
                        .state = seat.finished ? SeatState::kFinished : SeatState::kHeld,
                        .joined = resumed,
                        .heard = now_,
                        .version = seat.finished ? seat.version : formation_.version});
    ++seats_[static_cast<std::size_t>(members_.back().state)];
  }
  ended_ = ended_rank();
  if (formation_.stage != Stage::kEnded) key_values_.restore(e.kept);
  if (formation_.stage == Stage::kEnded) {
    emit(End{formation_.success, formation_.end});
    wait_for_agent();
    if (!leaves_at_) leave();
  } else if (!members_.empty() && formation_.stage != Stage::kRunning) {
    // An order of the unfinished generation may have been carried out: ask anew, under a new
    // number.
    begin({.kind = Reason::Kind::kSchedulerRestarted});
  }
}

void Machine::on(const ProvenDead& e) {
  const wire::Ending gone{.kind = wire::Ending::Kind::kGone};
  if (const auto early = arrivals_.find(e.node_id); early != arrivals_.end()) {
    if (early->second.seat.incarnation == e.incarnation) died(early->second, gone, false, 0);
    return;
  }
  const Rank rank = rank_of(e.node_id);
  if (rank == kNoRank || at(rank).seat.incarnation != e.incarnation) return;
  died(at(rank), gone, at(rank).seat.finished, 0);
}

void Machine::on(const TimePassed&) {
  if (formation_.stage == Stage::kEnded) {
    if (leaves_at_ && now_ >= *leaves_at_) leave();
    return;
  }
  if (formation_.stage == Stage::kAssembling) {
    if (now_ >= started_ + options_.topology_timeout) {
      end(false, {.kind = Reason::Kind::kTooFewCame,
                  .count = static_cast<std::int64_t>(arrivals_.size()),
                  .total = options_.world_size,
                  .awaited = awaited()});
    }
    return;
  }
  check_leases();
  if (waits_for_replacement() && now_ >= waiting_since_ + options_.replacement_timeout) {
    end(false, {.kind = Reason::Kind::kNotFormedInTime, .awaited = awaited()});
  }
}

std::optional<Instant> Machine::deadline() const {
  if (formation_.stage == Stage::kEnded) return left_ ? std::nullopt : leaves_at_;
  if (formation_.stage == Stage::kAssembling) return started_ + options_.topology_timeout;
  std::optional<Instant> next;
  const auto consider = [&](Instant instant) { next = next ? std::min(*next, instant) : instant; };
  if (waits_for_replacement()) consider(waiting_since_ + options_.replacement_timeout);
  for (const auto& member : members_) {
    if (is_timed(member)) consider(silent_at(member));
  }
  return next;
}

// ---- Key-values ---------------------------------------------------------------------------------

// Who asks needs no rank. What is said of a value waits, as everything does, until it is durable.
void Machine::receive(Link link, const wire::Put& m) {
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  if (m.key == wire::kSucceeded) return reject_word(link, m);  // The scheduler alone puts that.
  const auto put = key_values_.put(m.key, m.value);
  if (put == KeyValues::Put::kNoRoom) {
    const Reason why{.kind = Reason::Kind::kNoRoom,
                     .count = static_cast<std::int64_t>(kMaxStoredBytes),
                     .total = static_cast<std::int64_t>(kMaxStoredKeys)};
    return send(link, wire::Kept{m.id, why});
  }
  if (put == KeyValues::Put::kNew) emit(Store{std::nullopt, {{m.key, m.value}}});
  send(link, wire::Kept{m.id, {}});
  for (auto& answer : key_values_.answers(m.key)) emit(std::move(answer));
}

void Machine::receive(Link link, const wire::Get& m) {
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  std::optional<std::string> key;
  const auto asked = key_values_.get(link, m, key);
  if (asked == KeyValues::Asked::kTooMany) dismiss(link);
  if (asked != KeyValues::Asked::kAnswered) return;
  key ? emit(Answer{link, m.id, *std::move(key)}) : send(link, wire::Got{.id = m.id});
}

void Machine::on(const Interrupted& e) {
  if (formation_.stage == Stage::kEnded || options_.by_agent || options_.comes_back) return;
  end(false, {.kind = Reason::Kind::kSchedulerInterrupted, .count = e.signal});
}

// ---- Seats --------------------------------------------------------------------------------------

std::optional<SeatState> after(SeatState state, SeatEvent event) {
  using S = SeatState;
  using Row = std::array<std::optional<S>, kSeatEvents>;
  constexpr std::nullopt_t kSame = std::nullopt;
  static constexpr std::array<Row, kSeatStates> kTable{{
      // taken over, training ended, died, ended well, lease over, heard, hung up
      /* held     */ {S::kHeld, S::kFinished, S::kDead, S::kDeserted, S::kSilent, kSame, kSame},
      /* silent   */ {S::kHeld, S::kFinished, S::kDead, S::kDeserted, kSame, S::kHeld, kSame},
      /* dead     */ {S::kHeld, kSame, kSame, kSame, kSame, kSame, kSame},
      /* finished */ {S::kHeld, kSame, S::kOrphaned, S::kLeft, S::kLeft, kSame, S::kLeft},
      /* orphaned */ {S::kHeld, kSame, kSame, S::kLeft, S::kLeft, kSame, kSame},
      /* left     */ {S::kHeld, kSame, kSame, kSame, kSame, kSame, kSame},
      /* deserted */ {S::kHeld, kSame, kSame, kSame, kSame, kSame, kSame},
  }};
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

const char* name(SeatState state) {
  constexpr std::array<const char*, kSeatStates> kNames = {
      "held", "silent", "dead", "finished", "orphaned", "left", "deserted"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* name(SeatEvent event) {
  constexpr std::array<const char*, kSeatEvents> kNames = {
      "taken over", "training ended", "died", "ended well", "lease over", "heard", "hung up"};
  return kNames[static_cast<std::size_t>(event)];
}

void Machine::advance(Member& member, SeatEvent event) {
  const auto next = after(member.state, event);
  if (!next) return;
  if (rank_of(member.seat.node_id) != kNoRank) {
    --seats_[static_cast<std::size_t>(member.state)];
    ++seats_[static_cast<std::size_t>(*next)];
  }
  member.state = *next;
}

}  // namespace holdfast::controller
