// Who holds which place: registration, ranks, leases, deaths.
#include <algorithm>
#include <charconv>

#include "core/controller/machine.h"

namespace holdfast::controller {

using wire::Reason;
using wire::Stage;

namespace {

std::optional<std::int32_t> whole_number(const std::string& text) {
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// "worker-2" before "worker-10": runs of digits compare as numbers.
bool naturally_before(const std::string& a, const std::string& b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const auto run_end = [](const std::string& text, std::size_t at) {
      while (at < text.size() && is_digit(text[at])) ++at;
      return at;
    };
    const auto number = [](const std::string& text, std::size_t from, std::size_t to) {
      while (from + 1 < to && text[from] == '0') ++from;
      return text.substr(from, to - from);
    };
    const auto a_end = run_end(a, i);
    const auto b_end = run_end(b, j);
    const auto a_number = number(a, i, a_end);
    const auto b_number = number(b, j, b_end);
    if (a_number.size() != b_number.size()) return a_number.size() < b_number.size();
    if (a_number != b_number) return a_number < b_number;
    i = a_end;
    j = b_end;
  }
  return a.size() - i < b.size() - j || (a.size() - i == b.size() - j && a < b);
}

// Whole-numbered node ids 0..n-1 are the ranks; else the order is (host, node id).
std::vector<std::string> in_rank_order(const std::map<std::string, Member>& members) {
  std::vector<std::string> by_number(members.size());
  bool numbered = true;
  for (const auto& [node_id, member] : members) {
    const auto number = whole_number(node_id);
    numbered = numbered && number && static_cast<std::size_t>(*number) < by_number.size() &&
               by_number[static_cast<std::size_t>(*number)].empty();
    if (numbered) by_number[static_cast<std::size_t>(*number)] = node_id;
  }
  if (numbered) return by_number;
  std::vector<std::pair<std::string, std::string>> nodes;
  for (const auto& [node_id, member] : members) nodes.emplace_back(member.seat.host, node_id);
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : naturally_before(a.second, b.second);
  });
  std::vector<std::string> order;
  for (auto& node : nodes) order.push_back(std::move(node.second));
  return order;
}

}  // namespace

Rank Machine::rank_of(const std::string& node_id) const {
  const auto found = ranks_.find(node_id);
  return found == ranks_.end() ? kNoRank : found->second;
}

Rank Machine::rank_at(Link link) const {
  const auto found = nodes_.find(link);
  return found == nodes_.end() ? kNoRank : rank_of(found->second);
}

Member* Machine::member_on(Link link) {
  const auto node = nodes_.find(link);
  if (node == nodes_.end()) return nullptr;
  const auto early = arrivals_.find(node->second);
  return early != arrivals_.end() ? &early->second : &at(rank_of(node->second));
}

const Member* Machine::find(const std::string& node_id) const {
  const Rank rank = rank_of(node_id);
  if (rank != kNoRank) return &at(rank);
  const auto early = arrivals_.find(node_id);
  return early == arrivals_.end() ? nullptr : &early->second;
}

bool Machine::lease_runs(const Member& member) const {
  return member.state == SeatState::kHeld || member.state == SeatState::kFinished;
}

bool Machine::is_timed(const Member& member) const {
  return lease_runs(member) || member.state == SeatState::kOrphaned;
}

// A process that lives and has joined before may take its time between two steps (an evaluation);
// one that is gone, or a successor that never joins, may not.
bool Machine::waits_for_replacement() const {
  if (formation_.stage != Stage::kStopping && formation_.stage != Stage::kRepairing) return false;
  const bool starts = formation_.generation <= 1;  // User code may prepare for long.
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    if (member.seat.finished) return false;
    return member.state != SeatState::kHeld || (!member.joined && !starts);
  });
}

void Machine::attach(Member& member, Link link, const wire::Register& m) {
  if (member.link != 0 && member.link != link) {
    nodes_.erase(member.link);
    dismiss(member.link);
  }
  nodes_[link] = m.node_id;
  member.link = link;
  member.seat.memory = m.memory;
  member.seat.node_id = m.node_id;
  member.seat.host = m.host;
  member.seat.domain = m.host;
  member.seat.pid = m.pid;
  member.seat.incarnation = m.incarnation;
  member.seat.attempt = m.attempt;
  hear(member);
  advance(member, SeatEvent::kHeard);
}

// Why this process can not take part, if a process of the job is on a host with other memory.
std::optional<Reason> Machine::elsewhere(const wire::Register& m) const {
  if (!options_.one_host) return std::nullopt;
  // All who were let in share one memory, so one of them speaks for all.
  const Member* other = nullptr;
  if (!arrivals_.empty()) other = &arrivals_.begin()->second;
  const auto known = std::find_if(members_.begin(), members_.end(),
                                  [](const Member& member) { return !member.seat.memory.empty(); });
  if (known != members_.end()) other = &*known;
  if (other == nullptr || other->seat.memory == m.memory) return std::nullopt;
  return Reason{.kind = Reason::Kind::kOtherHost,
                .node_id = m.node_id,
                .host = m.host,
                .other = other->seat.node_id,
                .other_host = other->seat.host};
}

void Machine::receive(Link link, const wire::Register& m) {
  if (m.protocol != wire::kProtocol) {
    refuse(link,
           {.kind = Reason::Kind::kOtherProtocol, .count = m.protocol, .total = wire::kProtocol});
  } else if (formation_.stage == Stage::kEnded) {
    tell_end(link);
  } else if (m.job != formation_.job) {
    refuse(link, {.kind = Reason::Kind::kOtherJob, .other = m.job, .detail = formation_.job});
  } else if (!assembled()) {
    admit_early(link, m);
  } else if (const Rank rank = rank_of(m.node_id); rank == kNoRank) {
    refuse(link, {.kind = Reason::Kind::kPlacesTaken, .total = world_size(), .node_id = m.node_id});
  } else {
    admit(link, rank, m);
  }
}

void Machine::admit_early(Link link, const wire::Register& m) {
  const auto found = arrivals_.find(m.node_id);
  if (found != arrivals_.end() && found->second.seat.incarnation != m.incarnation &&
      found->second.seat.attempt >= m.attempt) {
    return refuse(link, {.kind = Reason::Kind::kNodeTaken, .node_id = m.node_id});
  }
  if (const auto why = elsewhere(m)) {
    end(false, *why);
    return tell_end(link);
  }
  attach(arrivals_[m.node_id], link, m);
  if (arrivals_.size() == static_cast<std::size_t>(options_.world_size)) return assemble();
  send(link, wire::Waiting{{.kind = Reason::Kind::kAssembling,
                            .count = static_cast<std::int64_t>(arrivals_.size()),
                            .total = options_.world_size}});
}

void Machine::assemble() {
  for (const auto& node_id : in_rank_order(arrivals_)) {
    ranks_[node_id] = world_size();
    members_.push_back(std::move(arrivals_.at(node_id)));
    ++seats_[static_cast<std::size_t>(members_.back().state)];
  }
  arrivals_.clear();
  begin({.kind = Reason::Kind::kJobStarts});
  for (Rank rank = 0; rank < world_size(); ++rank) heed_agents(at(rank).seat.node_id);
}

void Machine::admit(Link link, Rank rank, const wire::Register& m) {
  Member& member = at(rank);
  if (m.incarnation == member.seat.incarnation) {
    attach(member, link, m);
    return welcome(rank);
  }
  if (const auto why = elsewhere(m)) return refuse(link, *why);
  // An agent gives a place to one process at a time: a later one proves that the former is dead.
  const bool succeeds = m.attempt > member.seat.attempt;
  // Of a rank that has ended and left nobody has to take the place: the job's end is waited for.
  const bool has_left = member.state == SeatState::kLeft;
  if (m.attempt < member.seat.attempt) {
    refuse(link, {.kind = Reason::Kind::kNewerProcess, .rank = rank});
  } else if (succeeds || (!has_left && !lease_runs(member))) {
    take_over(rank, link, m);
  } else if (has_left) {
    pending_[link] = m;
    send(link, wire::Waiting{{.kind = Reason::Kind::kRankHasEnded, .rank = rank}});
  } else {
    pending_[link] = m;
    const auto left = std::chrono::ceil<std::chrono::seconds>(member.heard + options_.lease - now_);
    send(link, wire::Waiting{{.kind = Reason::Kind::kLeased,
                              .rank = rank,
                              .pid = member.seat.pid,
                              .count = left.count(),
                              .host = member.seat.host}});
  }
}

void Machine::take_over(Rank rank, Link link, const wire::Register& m) {
  Member& member = at(rank);
  if (lease_runs(member)) died(member, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  pending_.erase(link);
  member.seat.finished = false;  // Its successor has to end in good order itself.
  member.joined = false;
  advance(member, SeatEvent::kTakenOver);
  attach(member, link, m);
  // What ranks do together before their first step can not be completed any more (P39).
  const bool first = key_values_.put(wire::kSucceeded, "") == KeyValues::Put::kNew;
  if (first) keeps_.push_back({wire::kSucceeded, ""});
  if (formation_.stage == Stage::kStopping) {
    store();
    welcome(rank);
  } else {
    // A finished rank's death stopped nobody; its successor still has to be told where to go on.
    // One store for both: a new lease within a generation that is running must never be on record.
    begin({.kind = Reason::Kind::kRankCameBack, .rank = rank});
  }
  for (auto& answer : key_values_.answers(wire::kSucceeded)) emit(std::move(answer));
  heed_agents(m.node_id);
}

// Tells a process all that it may have missed.
void Machine::welcome(Rank rank) {
  assign(rank);
  if (at(rank).seat.finished) send(at(rank).link, wire::Farewell{});
}

void Machine::receive(Link link, const wire::AgentState& m) {
  if (m.protocol != wire::kProtocol) {
    return refuse(
        link,
        {.kind = Reason::Kind::kOtherProtocol, .count = m.protocol, .total = wire::kProtocol});
  }
  if (m.job != formation_.job) {
    return refuse(link,
                  {.kind = Reason::Kind::kOtherJob, .other = m.job, .detail = formation_.job});
  }
  if (formation_.stage == Stage::kEnded) {
    leaves_at_.reset();
    tell_end(link);
    return leave();
  }
  agents_[link] = m;
  for (const auto& place : m.places) {
    heed(place);
    const Member* member = find(place.node_id);
    if (member == nullptr || member->ending.kind != wire::Ending::Kind::kNotHeard) continue;
    if (member->seat.incarnation == place.incarnation && place.alive && !lease_runs(*member)) {
      send(link, wire::Evict{place.node_id, place.incarnation});  // It may have missed the first.
    }
  }
  maybe_nobody_came();
}

// What an agent said of a process may have come before the process's own Register.
void Machine::heed_agents(const std::string& node_id) {
  for (const auto& [link, state] : agents_) {
    for (const auto& place : state.places) {
      if (place.node_id == node_id) heed(place);
    }
  }
}

void Machine::heed(const wire::PlaceState& place) {
  const Rank rank = rank_of(place.node_id);
  const auto early = arrivals_.find(place.node_id);
  if (rank == kNoRank && early == arrivals_.end()) return;
  Member& member = rank != kNoRank ? at(rank) : early->second;
  tell_how(member, place);
  const wire::Seat& seat = member.seat;
  const bool same = place.attempt == seat.attempt && place.incarnation == seat.incarnation;
  const bool replaced = seat.attempt != 0 && place.attempt > seat.attempt;
  if (same && place.alive) return;
  if (!same && !replaced) return;  // Said before this incarnation was accepted.
  const bool well = place.ending == wire::Ending{wire::Ending::Kind::kExited, 0};
  died(member, place.ending, same && well, place.detected_ns);
  if (rank == kNoRank) return;  // It made room, and is no more.
  if (member.state == SeatState::kOrphaned && !place.alive && well) {
    // The successor has left without a word, and its agent gives the place to nobody else.
    advance(member, SeatEvent::kEndedWell);
    maybe_all_left();
  }
}

// A death is told at once. Its agent learns how it came only when the memory is gone.
void Machine::tell_how(Member& member, const wire::PlaceState& place) {
  if (place.detected_ns == 0 || place.detected_ns != member.detected_ns) return;
  const Rank rank = rank_of(place.node_id);
  if (place.ending == member.ending || rank == kNoRank) return;
  member.ending = place.ending;
  note(Note::Kind::kHow, rank,
       {.kind = Reason::Kind::kRankLost,
        .rank = rank,
        .pid = member.ended_pid,
        .ending = member.ending});
}

void Machine::died(Member& member, const wire::Ending& ending, bool in_good_order,
                   std::uint64_t detected_ns) {
  const std::string node_id = member.seat.node_id;
  const Rank rank = rank_of(node_id);
  if (rank == kNoRank) {  // Before the ranks are given it just makes room.
    nodes_.erase(member.link);
    arrivals_.erase(node_id);
    return;
  }
  if (!lease_runs(member) && member.state != SeatState::kSilent) return;
  member.ending = ending;
  member.ended_pid = member.seat.pid;
  member.detected_ns = detected_ns;
  advance(member, in_good_order ? SeatEvent::kEndedWell : SeatEvent::kDied);
  member.heard = now_;
  if (!in_good_order) {  // What it said before may still be under way: it is no longer heard.
    nodes_.erase(member.link);
    member.link = 0;
    rank_lost(
        rank,
        {.kind = Reason::Kind::kRankLost, .rank = rank, .pid = member.seat.pid, .ending = ending},
        detected_ns);
  } else if (member.state == SeatState::kDeserted && member.joined &&
             formation_.stage != Stage::kEnded) {
    end(false, {.kind = Reason::Kind::kEndedEarly, .rank = rank, .version = member.version});
  } else {
    maybe_all_left();
    maybe_plan();  // Who wants to train with it must hear that it will not.
  }
  answer_pending(rank);
}

// The newest one gets the place: of an older one the end may not have been heard yet.
void Machine::answer_pending(Rank rank) {
  const auto pending = std::find_if(pending_.rbegin(), pending_.rend(), [&](const auto& entry) {
    return entry.second.node_id == at(rank).seat.node_id;
  });
  if (pending == pending_.rend() || formation_.stage == Stage::kEnded) return;
  if (at(rank).state == SeatState::kLeft) return;  // Nobody is needed there.
  const auto [link, who] = *pending;
  take_over(rank, link, who);
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

void Machine::check_leases() {
  std::vector<Rank> silent;
  for (Rank rank = 0; rank < world_size(); ++rank) {
    Member& member = at(rank);
    if (!is_timed(member) || now_ < silent_at(member)) continue;
    if (member.called || member.state == SeatState::kOrphaned) {
      silent.push_back(rank);
    } else {
      member.called = now_;
    }
  }
  for (const Rank rank : silent) lose(at(rank));
  maybe_all_left();
}

// Its lease has run out.
void Machine::lose(Member& member) {
  const Rank rank = rank_of(member.seat.node_id);
  advance(member, SeatEvent::kLeaseOver);
  member.ending = {.kind = wire::Ending::Kind::kNotHeard};
  tell_agents(wire::Evict{member.seat.node_id, member.seat.incarnation});
  if (!member.seat.finished) {
    rank_lost(rank,
              {.kind = Reason::Kind::kRankLost,
               .rank = rank,
               .pid = member.seat.pid,
               .ending = member.ending},
              0);
  }
  answer_pending(rank);
}

std::vector<wire::Awaited> Machine::awaited() const {
  using Kind = wire::Awaited::Kind;
  std::vector<wire::Awaited> all;
  for (const auto& [node_id, member] : arrivals_) all.push_back({.node_id = node_id});
  for (Rank rank = 0; rank < world_size(); ++rank) {
    const Member& member = at(rank);
    if (member.seat.finished) continue;
    if (member.state != SeatState::kHeld) {
      all.push_back({.kind = Kind::kNotReplaced, .rank = rank, .ending = member.ending});
    } else if (formation_.stage == Stage::kStopping && !reports_.contains(rank)) {
      all.push_back({.kind = Kind::kNotReported, .rank = rank, .pid = member.seat.pid});
    } else if (repairing_.contains(rank)) {
      all.push_back({.kind = Kind::kNotRepaired, .rank = rank, .pid = member.seat.pid});
    }
  }
  return all;
}

}  // namespace holdfast::controller
