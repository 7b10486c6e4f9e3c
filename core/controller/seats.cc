// Seats: what each is, how many are what, and whose lease has run out.
#include <algorithm>
#include <array>

#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

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

// It has the next rank from now on.
void Machine::seat(Member member) {
  member.rank = world_size();
  is_book_old_ = true;
  ranks_[member.seat.node_id] = member.rank;
  if (const auto peer = peers_.find(member.link); peer != peers_.end()) {
    peer->second.rank = member.rank;
  }
  if (member.seat.given) given_.insert(member.rank);
  if (member.seat.incarnation == 0) vacant_.insert(member.rank);
  if (!member.seat.agent.empty()) owned_[member.seat.agent].insert(member.rank);
  members_.push_back(std::move(member));
  count(members_.back(), true);
  watch(members_.back());
}

void Machine::count(const Member& member, bool in) {
  if (member.rank == kNoRank) return;
  const auto add = [&](std::size_t& number) { in ? ++number : --number; };
  add(seats_[static_cast<std::size_t>(member.state)]);
  std::size_t& at_version = versions_[member.version];
  add(at_version);
  if (at_version == 0) versions_.erase(member.version);
  if (member.seat.finished) return;
  if (member.state != SeatState::kHeld) {
    add(absent_);
  } else if (!member.joined) {
    add(unjoined_);
  }
}

void Machine::set_version(Member& member, Version version) {
  if (version == member.version) return;
  alter(member, [&](Member& m) { m.version = version; });
}

void Machine::advance(Member& member, SeatEvent event) {
  const auto next = after(member.state, event);
  if (!next) return;
  alter(member, [&](Member& m) { m.state = *next; });
  watch(member);
}

// A process that lives and has joined before may take its time between two steps (an evaluation);
// one that is gone, or a successor that never joins, may not.
bool Machine::waits_for_replacement() const {
  if (formation_.stage != Stage::kStopping && formation_.stage != Stage::kRepairing) return false;
  const bool starts = formation_.generation <= 1;  // User code may prepare for long.
  return absent_ != 0 || (unjoined_ != 0 && !starts);
}

bool Machine::lease_runs(const Member& member) const {
  return member.state == SeatState::kHeld || member.state == SeatState::kFinished;
}

bool Machine::is_timed(const Member& member) const {
  return lease_runs(member) || member.state == SeatState::kOrphaned;
}

void Machine::hear(Member& member) {
  member.heard = now_;
  member.called.reset();
}

// When its silence is to be looked at. Whoever seems silent has a last call of an eighth of the
// lease: had we, or all of us, stood still meanwhile, what it said is heard within it (P10).
Instant Machine::silent_at(const Member& member) const {
  // An orphan's successor has as long as any other to come; nothing but its exit depends on it.
  if (member.state == SeatState::kOrphaned) return member.heard + options_.replacement_timeout;
  const Duration last_call = options_.lease / 8;
  const Instant end = member.heard + options_.lease;
  return member.called ? std::max(end, *member.called + last_call) : end - last_call;
}

// Sees to it that the member is looked at when its silence counts. It may be looked at earlier,
// since it was heard of meanwhile: then it is only watched anew. So a word that is heard costs
// nothing here.
void Machine::watch(Member& member) {
  if (member.rank == kNoRank || !is_timed(member)) return;
  const Instant at = silent_at(member);
  if (member.timer && *member.timer <= at) return;
  if (member.timer) timers_.erase({*member.timer, member.rank});
  member.timer = at;
  timers_.insert({at, member.rank});
}

void Machine::check_leases() {
  std::set<Rank> silent;
  while (!timers_.empty() && timers_.begin()->first <= now_) {
    Member& member = at(timers_.begin()->second);
    timers_.erase(timers_.begin());
    member.timer.reset();
    if (!is_timed(member)) continue;
    if (now_ >= silent_at(member)) {
      if (member.called || member.state == SeatState::kOrphaned) {
        silent.insert(member.rank);
        continue;
      }
      member.called = now_;
    }
    watch(member);
  }
  for (const Rank rank : silent) lose(at(rank));
  maybe_all_left();
}

// Its lease has run out.
void Machine::lose(Member& member) {
  const Rank rank = member.rank;
  advance(member, SeatEvent::kLeaseOver);
  member.ending = {.kind = wire::Ending::Kind::kNotHeard};
  evict(member);
  if (!member.seat.finished) {
    rank_lost(rank,
              {.kind = Reason::Kind::kRankLost,
               .rank = rank,
               .pid = member.seat.pid,
               .ending = member.ending},
              0);
  }
  answer_waiting(member.seat.node_id);
}

}  // namespace holdfast::controller
