// Who holds which place: registration, ranks, leases, deaths.
#include <algorithm>
#include <charconv>

#include "base/text.h"
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

// Another spelling of the same whole number ("01", "1") that is here already; else nothing.
std::optional<std::string> same_number(const std::map<std::string, Member>& members,
                                       const std::string& node_id) {
  constexpr std::size_t kMaxDigits = 9;
  const auto number = whole_number(node_id);
  if (!number) return std::nullopt;
  const std::string digits = std::to_string(*number);
  for (std::size_t zeros = 0; digits.size() + zeros <= kMaxDigits; ++zeros) {
    std::string text(zeros, '0');
    text += digits;
    if (text != node_id && members.contains(text)) return text;
  }
  return std::nullopt;
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

// Who waits for the others is told of them no more often.
constexpr Duration kArrivalsToldEvery = std::chrono::seconds(1);

Reason not_given(const wire::Register& m) {
  return {.kind = Reason::Kind::kNotGiven,
          .count = static_cast<std::int64_t>(m.attempt),
          .node_id = m.node_id};
}

// So many are named where a group can not be formed. All ranks are told that.
constexpr std::size_t kMaxAwaited = 64;

// Whether somebody says that it is the process of this seat, and is not.
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

Rank Machine::rank_at(Link link) const {
  const auto found = peers_.find(link);
  return found == peers_.end() || !found->second.has_seat ? kNoRank : found->second.rank;
}

const Member* Machine::member_on(Link link) {
  const auto found = peers_.find(link);
  if (found == peers_.end() || !found->second.has_seat) return nullptr;
  const Peer& peer = found->second;
  return peer.rank != kNoRank ? &roster_.at(peer.rank) : &roster_.arrivals().at(peer.node_id);
}

void Machine::attach(const Member& member, Link link, const wire::Register& m) {
  if (member.link != link) {
    const Link before = member.link;
    detach(member);
    if (before != 0) dismiss(before);
  }
  Peer& peer = peers_.at(link);
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
  });
  roster_.hear(member, now_);
  roster_.advance(member, SeatEvent::kHeard);
}

// What comes on its connection is not its word any more.
void Machine::detach(const Member& member) {
  if (const auto peer = peers_.find(member.link); peer != peers_.end()) {
    peer->second.has_seat = false;
  }
  roster_.alter(member, [](Member& changed) { changed.link = 0; });
}

// Why this process can not take part: it shares no memory with one of the job, and one of the two
// has no endpoint.
std::optional<Reason> Machine::elsewhere(const wire::Register& m) const {
  const Member* other = roster_.out_of_reach(m);
  if (other == nullptr) return std::nullopt;
  return Reason{.kind = Reason::Kind::kOtherHost,
                .node_id = m.node_id,
                .host = m.host,
                .other = other->seat.node_id,
                .other_host = other->seat.host};
}

void Machine::receive(Link link, const wire::Register& m) {
  if (m.protocol != wire::kProtocol) {
    return refuse(
        link,
        {.kind = Reason::Kind::kOtherProtocol, .count = m.protocol, .total = wire::kProtocol});
  }
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  if (m.job != formation_.job) {
    return refuse(link,
                  {.kind = Reason::Kind::kOtherJob, .other = m.job, .detail = formation_.job});
  }
  if (const auto why = excess({&m.node_id, &m.host, &m.memory, &m.endpoint, &m.domain}))
    return reject(link, *why);
  Peer& peer = peers_.at(link);
  const bool is_new = peer.node_id.empty();
  if (!is_new && (peer.node_id != m.node_id || peer.incarnation != m.incarnation)) {
    return reject(
        link, {.kind = Reason::Kind::kTwoProcesses, .node_id = peer.node_id, .other = m.node_id});
  }
  peer.node_id = m.node_id;
  peer.incarnation = m.incarnation;
  if (!roster_.assembled()) {
    admit_early(link, m);
  } else if (const Rank rank = roster_.rank_of(m.node_id); rank == kNoRank) {
    turn_away(link, m,
              {Verdict::Kind::kNever,
               {.kind = Reason::Kind::kPlacesTaken,
                .total = roster_.world_size(),
                .node_id = m.node_id}});
  } else {
    admit(link, rank, m);
  }
}

// Before the ranks are given. A process may come while no agent speaks for its place.
Machine::Verdict Machine::early_verdict_on(const wire::Register& m) const {
  using Kind = Verdict::Kind;
  if (const auto other = same_number(roster_.arrivals(), m.node_id)) {
    return {Kind::kNever,
            {.kind = Reason::Kind::kNodeTaken, .node_id = m.node_id, .other = *other}};
  }
  const auto found = roster_.arrivals().find(m.node_id);
  const bool is_free =
      found == roster_.arrivals().end() || found->second.seat.incarnation == m.incarnation;
  const bool by_hand = m.attempt == 0 || (!is_free && found->second.seat.attempt == 0);
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

void Machine::admit_early(Link link, const wire::Register& m) {
  const Verdict verdict = early_verdict_on(m);
  if (verdict.kind == Verdict::Kind::kWaits) return keep_waiting(link, m, verdict.reason);
  if (verdict.kind == Verdict::Kind::kNever) return turn_away(link, m, verdict);
  const auto found = roster_.arrivals().find(m.node_id);
  if (found != roster_.arrivals().end() && found->second.seat.incarnation == m.incarnation) {
    if (const auto why = not_that_one(found->second.seat, m)) return reject(link, *why);
    if (link < found->second.newest) return dismiss(link);
  }
  if (const auto why = elsewhere(m)) {
    end(false, *why);
    return tell_end(link);
  }
  attach(roster_.arrive(m.node_id), link, m);
  if (may_assemble()) return assemble();
  arrivals_are_told_ = false;
  maybe_tell_arrivals();
}

// How many are here. Of thousands that come within a second, each is told once or twice.
void Machine::maybe_tell_arrivals() {
  if (arrivals_are_told_ || now_ < arrivals_next_) return;
  for (const auto& [node_id, member] : roster_.arrivals()) {
    send(member.link, wire::Waiting{{.kind = Reason::Kind::kAssembling,
                                     .count = static_cast<std::int64_t>(roster_.arrivals().size()),
                                     .total = options_.world_size}});
  }
  arrivals_are_told_ = true;
  arrivals_next_ = now_ + kArrivalsToldEvery;
}

// Of several hosts, each agent has to have spoken as well: by its silence its host is missed.
bool Machine::may_assemble() const {
  if (roster_.assembled() ||
      roster_.arrivals().size() != static_cast<std::size_t>(options_.world_size)) {
    return false;
  }
  if (roster_.memories() <= 1) return true;
  const auto is_unspoken = [&](const auto& arrival) {
    return arrival.second.seat.attempt != 0 && agents_.speaker(arrival.first) == nullptr;
  };
  // From the last one that was found on: the agents of those before it have spoken, most likely.
  const auto from = roster_.arrivals().lower_bound(unspoken_);
  auto found = std::find_if(from, roster_.arrivals().end(), is_unspoken);
  if (found == roster_.arrivals().end()) {
    found = std::find_if(roster_.arrivals().begin(), from, is_unspoken);
    if (found == from) found = roster_.arrivals().end();
  }
  if (found != roster_.arrivals().end()) unspoken_ = found->first;
  return found == roster_.arrivals().end();
}

void Machine::assemble() {
  for (const auto& node_id : in_rank_order(roster_.arrivals())) {
    const Agent* agent = agents_.speaker(node_id);
    const Member& member = roster_.give_rank(node_id, agent == nullptr ? "" : agent->agent_id);
    if (const auto peer = peers_.find(member.link); peer != peers_.end()) {
      peer->second.rank = member.rank;
    }
  }
  begin({.kind = Reason::Kind::kJobStarts});
  for (Rank rank = 0; rank < roster_.world_size(); ++rank)
    apply_word_on(roster_.at(rank).seat.node_id);
  std::map<Link, wire::Register> surplus;
  for (const auto& [link, m] : pending_) {
    if (roster_.rank_of(m.node_id) == kNoRank) surplus.emplace(link, m);
  }
  for (const auto& [link, m] : surplus) {
    stop_waiting(link);
    turn_away(link, m,
              {Verdict::Kind::kNever,
               {.kind = Reason::Kind::kPlacesTaken,
                .total = roster_.world_size(),
                .node_id = m.node_id}});
  }
}

// An agent gives a place to one process at a time: a later one proves that the former is dead. Only
// the agent that owns the place says which process has it. All others wait, until their own agents
// end them.
Machine::Verdict Machine::verdict_on(Rank rank, const wire::Register& m) const {
  using Kind = Verdict::Kind;
  const Member& member = roster_.at(rank);
  const bool is_leased = member.lease_runs();
  if (const auto why = elsewhere(m)) return {Kind::kNever, *why};
  if (m.attempt == 0 && member.seat.attempt != 0) {
    return {Kind::kNever, {.kind = Reason::Kind::kNewerProcess, .rank = rank}};
  }
  if (!agents_.is_given(m)) return {Kind::kWaits, is_leased ? leased(rank) : not_given(m)};
  if (member.seat.attempt != 0 && m.attempt > member.seat.attempt) return {};
  // Of a rank that has ended and left nobody has to take the place: the job's end is waited for.
  if (member.state == SeatState::kLeft) {
    return {Kind::kWaits, {.kind = Reason::Kind::kRankHasEnded, .rank = rank}};
  }
  return is_leased ? Verdict{Kind::kWaits, leased(rank)} : Verdict{};
}

Reason Machine::leased(Rank rank) const {
  const Member& member = roster_.at(rank);
  const auto left = std::chrono::ceil<std::chrono::seconds>(member.heard + options_.lease - now_);
  return {.kind = Reason::Kind::kLeased,
          .rank = rank,
          .pid = member.seat.pid,
          .count = left.count(),
          .host = member.seat.host};
}

void Machine::admit(Link link, Rank rank, const wire::Register& m) {
  const Member& member = roster_.at(rank);
  if (m.incarnation == member.seat.incarnation) {
    if (const auto why = not_that_one(member.seat, m)) return reject(link, *why);
    // A process makes one connection after another: here it has said this long ago.
    if (link < member.newest) return dismiss(link);
    const bool is_dead = member.state == SeatState::kDead || member.state == SeatState::kOrphaned;
    if (is_dead) return refuse(link, {.kind = Reason::Kind::kNewerProcess, .rank = rank});
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

// A process without an agent was started by hand, maybe twice by mistake. Of one with an agent the
// agent knows, and it waits for moments only.
void Machine::note_taken(const wire::Register& m, const Reason& reason) {
  using Kind = Reason::Kind;
  const bool is_surplus = reason.kind == Kind::kPlacesTaken || reason.kind == Kind::kNodeTaken;
  const bool is_twin = reason.kind == Kind::kLeased && m.attempt == 0;
  if (!is_surplus && !is_twin) return;
  emit(Note{.kind = Note::Kind::kTaken,
            .generation = formation_.generation,
            .version = formation_.version,
            .reason = reason,
            .seeker = {.node_id = m.node_id, .host = m.host, .pid = m.pid}});
}

bool Machine::waits_for_place(const std::string& node_id, std::int64_t pid) const {
  const auto found = waiting_.find(node_id);
  return found != waiting_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](Link link) { return pending_.at(link).pid == pid; });
}

void Machine::turn_away(Link link, const wire::Register& m, const Verdict& verdict) {
  note_taken(m, verdict.reason);
  refuse(link, verdict.reason);
}

void Machine::keep_waiting(Link link, const wire::Register& m, Reason reason) {
  pending_[link] = m;
  waiting_[m.node_id].insert(link);
  note_taken(m, reason);
  send(link, wire::Waiting{std::move(reason)});
}

void Machine::stop_waiting(Link link) {
  const auto found = pending_.find(link);
  if (found == pending_.end()) return;
  const auto waiting = waiting_.find(found->second.node_id);
  waiting->second.erase(link);
  if (waiting->second.empty()) waiting_.erase(waiting);
  pending_.erase(found);
}

// Somebody may have this place by now, or has learnt that it never will. The newest one comes
// first: of an older one the end may not have been heard yet.
void Machine::answer_waiting(const std::string& node_id) {
  const auto found = waiting_.find(node_id);
  if (found == waiting_.end()) return;
  const std::set<Link> links = found->second;
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    const auto pending = pending_.find(*link);
    if (pending == pending_.end() || formation_.stage == Stage::kEnded) continue;
    const wire::Register m = pending->second;
    const Rank rank = roster_.rank_of(node_id);
    if (roster_.assembled() && rank == kNoRank) return;
    const Verdict verdict = roster_.assembled() ? verdict_on(rank, m) : early_verdict_on(m);
    if (verdict.kind == Verdict::Kind::kWaits) continue;  // That was said already.
    stop_waiting(*link);
    roster_.assembled() ? admit(*link, rank, m) : admit_early(*link, m);
  }
}

void Machine::take_over(Rank rank, Link link, const wire::Register& m) {
  const Member& member = roster_.at(rank);
  stop_waiting(link);
  if (member.lease_runs()) died(member, {.kind = wire::Ending::Kind::kReplaced}, false, 0);
  if (formation_.stage == Stage::kEnded) return tell_end(link);
  const bool moves = member.seat.memory != m.memory;
  roster_.alter(member, [moves](Member& changed) {
    changed.seat.moved = changed.seat.moved || moves;
    changed.seat.finished = false;  // Its successor has to end in good order itself.
    changed.joined = false;
  });
  roster_.set_version(member, formation_.version);  // What the former one said binds only that one.
  roster_.hear(member, now_);
  roster_.advance(member, SeatEvent::kTakenOver);
  attach(member, link, m);
  // What ranks do together before their first step can not be completed any more (P39).
  const auto put = key_values_.put({.id = 0, .key = wire::kSucceeded, .value = ""});
  if (put->is_set()) keeps_.push_back({wire::kSucceeded, ""});
  if (formation_.stage == Stage::kStopping) {
    store();
    welcome(rank);
  } else {
    // A finished rank's death stopped nobody; its successor still has to be told where to go on.
    // One store for both: a new lease within a generation that is running must never be on record.
    begin({.kind = Reason::Kind::kRankCameBack, .rank = rank});
  }
  for (auto& answer : key_values_.answers(wire::kSucceeded)) emit(std::move(answer));
  apply_word_on(m.node_id);
}

// Tells a process all that it may have missed.
void Machine::welcome(Rank rank) {
  assign(rank);
  if (roster_.at(rank).seat.finished) send(roster_.at(rank).link, wire::Farewell{});
}

void Machine::died(const Member& member, const wire::Ending& ending, bool in_good_order,
                   std::uint64_t detected_ns) {
  const std::string node_id = member.seat.node_id;
  const Rank rank = member.rank;
  if (rank == kNoRank) {  // Before the ranks are given it just makes room.
    dismiss(member.link);
    detach(member);
    roster_.forget_arrival(node_id);
    return answer_waiting(node_id);
  }
  if (!member.lease_runs() && member.state != SeatState::kSilent) return;
  roster_.alter(member, [&](Member& changed) {
    changed.ending = ending;
    changed.ended_pid = changed.seat.pid;
    changed.detected_ns = detected_ns;
    changed.heard = now_;
  });
  roster_.advance(member, in_good_order ? SeatEvent::kEndedWell : SeatEvent::kDied);
  if (!in_good_order) {  // What it said before may still be under way: it is no longer heard.
    detach(member);
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
  answer_waiting(node_id);
}

std::vector<wire::Awaited> Machine::awaited() const {
  using Kind = wire::Awaited::Kind;
  std::vector<wire::Awaited> all;
  for (const auto& [node_id, member] : roster_.arrivals()) {
    if (all.size() < kMaxAwaited) all.push_back({.node_id = node_id});
  }
  for (Rank rank = 0; rank < roster_.world_size() && all.size() < kMaxAwaited; ++rank) {
    const Member& member = roster_.at(rank);
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
