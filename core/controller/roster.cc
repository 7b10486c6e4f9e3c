#include "core/controller/roster.h"

#include <algorithm>

#include "base/number.h"

namespace holdfast::controller {
namespace {

bool is_timed(const Member& member) {  // Whether silence changes its state.
  return member.lease_runs() || member.state == SeatState::kOrphaned;
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

}  // namespace

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

Rank Roster::rank_of(const std::string& node_id) const {
  const auto found = ranks_.find(node_id);
  return found == ranks_.end() ? kNoRank : found->second;
}

const Member* Roster::find(const std::string& node_id) const {
  const Rank rank = rank_of(node_id);
  if (rank != kNoRank) return &at(rank);
  const auto early = arrivals_.find(node_id);
  return early == arrivals_.end() ? nullptr : &early->second;
}

const std::set<Rank>& Roster::owned_by(const std::string& agent_id) const {
  static const std::set<Rank> kNone;
  const auto owned = owned_.find(agent_id);
  return owned == owned_.end() ? kNone : owned->second;
}

Member& Roster::own(const Member& member) {
  return member.rank == kNoRank ? arrivals_.at(member.seat.node_id)
                                : members_[static_cast<std::size_t>(member.rank)];
}

std::optional<std::string> Roster::same_number(const std::string& node_id) const {
  constexpr std::size_t kMaxDigits = 9;
  const auto number = whole_number(node_id);
  if (!number) return std::nullopt;
  const std::string digits = std::to_string(*number);
  for (std::size_t zeros = 0; digits.size() + zeros <= kMaxDigits; ++zeros) {
    std::string text(zeros, '0');
    text += digits;
    if (text != node_id && arrivals_.contains(text)) return text;
  }
  return std::nullopt;
}

std::vector<std::string> Roster::in_order(bool serves) const {
  std::map<Rank, std::string> by_number;
  std::vector<std::pair<std::string, std::string>> nodes;
  bool numbered = true;
  for (const auto& [node_id, member] : arrivals_) {
    if (member.serves != serves) continue;
    nodes.emplace_back(member.seat.host, node_id);
    const auto number = whole_number(node_id);
    numbered = numbered && number && by_number.emplace(*number, node_id).second;
  }
  std::vector<std::string> order;
  const auto count = static_cast<Rank>(nodes.size());
  if (numbered && (serves || nodes.empty() || by_number.rbegin()->first < count)) {
    for (auto& [number, node_id] : by_number) order.push_back(std::move(node_id));
    return order;
  }
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : naturally_before(a.second, b.second);
  });
  for (auto& node : nodes) order.push_back(std::move(node.second));
  return order;
}

std::vector<std::string> Roster::rank_order() const {
  auto order = in_order(false);
  for (auto& server : in_order(true)) order.push_back(std::move(server));
  return order;
}

const Member& Roster::arrive(const std::string& node_id) {
  Member& member = arrivals_[node_id];
  member.seat.node_id = node_id;
  return member;
}

void Roster::forget_arrival(const std::string& node_id) {
  const auto early = arrivals_.extract(node_id);
  if (!early.empty()) count(early.mapped(), false);
}

void Roster::seat(Member member) {
  member.rank = world_size();
  has_moved_ = true;
  ranks_[member.seat.node_id] = member.rank;
  members_.push_back(std::move(member));
  count(members_.back(), true);
  watch(members_.back());
}

const Member& Roster::give_rank(const std::string& node_id, const std::string& agent_id) {
  auto early = arrivals_.extract(node_id);
  count(early.mapped(), false);
  early.mapped().seat.agent = agent_id;
  seat(std::move(early.mapped()));
  return members_.back();
}

void Roster::count(const Member& member, bool in) {
  count_place(member.seat, in);
  const Rank rank = member.rank;
  const auto add = [&](std::size_t& number) { in ? ++number : --number; };
  if (rank == kNoRank) {
    if (member.serves) add(serving_);
    return;
  }
  const auto list = [&](std::set<Rank>& ranks) {
    in ? (void)ranks.insert(rank) : (void)ranks.erase(rank);
  };
  if (!member.seat.agent.empty()) {
    auto& ranks = owned_[member.seat.agent];
    list(ranks);
    if (ranks.empty()) owned_.erase(member.seat.agent);
  }
  if (member.is_free) list(free_);
  if (member.seat.given) list(given_);
  if (member.seat.incarnation == 0) list(vacant_);
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

void Roster::count_place(const wire::Seat& seat, bool in) {
  if (seat.memory.empty()) return;  // No process has had it yet.
  Sharers& sharers = memories_[seat.memory];
  const auto add = [&](std::size_t& number) { in ? ++number : --number; };
  add(sharers.all);
  if (seat.endpoint.empty()) {
    add(sharers.unreachable);
    add(unreachable_);
  }
  if (sharers.all == 0) memories_.erase(seat.memory);
}

const Member* Roster::out_of_reach(const wire::Register& m) const {
  const auto same = memories_.find(m.memory);
  const bool is_first = same == memories_.end();
  const std::size_t others = memories_.size() - (is_first ? 0 : 1);
  const std::size_t unreachable = unreachable_ - (is_first ? 0 : same->second.unreachable);
  if (others == 0 || (!m.endpoint.empty() && unreachable == 0)) return nullptr;
  for (const auto& [memory, sharers] : memories_) {
    if (memory == m.memory) continue;
    if (m.endpoint.empty() || sharers.unreachable != 0) return one_with(memory);
  }
  return nullptr;
}

// Some process of the job with this memory, if possible one without an endpoint.
const Member* Roster::one_with(const std::string& memory) const {
  const Member* some = nullptr;
  const auto look = [&](const Member& member) {
    ++looks_;
    if (member.seat.memory != memory) return;
    const bool better =
        some == nullptr || (!some->seat.endpoint.empty() && member.seat.endpoint.empty());
    if (better) some = &member;
  };
  for (const auto& [node_id, member] : arrivals_) look(member);
  for (const Member& member : members_) look(member);
  return some;
}

void Roster::alter(const Member& member, const std::function<void(Member&)>& change) {
  Member& mine = own(member);
  const wire::Seat before = mine.seat;
  count(mine, false);
  change(mine);
  count(mine, true);
  has_moved_ = has_moved_ || before.memory != mine.seat.memory ||
               before.endpoint != mine.seat.endpoint || before.domain != mine.seat.domain;
  if (mine.rank != kNoRank && mine.seat != before) changed_.insert(mine.rank);
}

void Roster::advance(const Member& member, SeatEvent event) {
  const auto next = after(member.state, event);
  if (!next) return;
  alter(member, [&](Member& m) { m.state = *next; });
  watch(own(member));
}

void Roster::set_version(const Member& member, Version version) {
  if (version == member.version) return;
  const auto former = versions_.find(member.version);
  if (--former->second == 0) versions_.erase(former);
  ++versions_[version];
  own(member).version = version;
}

void Roster::hear(const Member& member, Instant now) {
  Member& mine = own(member);
  mine.heard = now;
  mine.called.reset();
}

// When the member's silence is to be checked. A member that seems silent has a last call of an
// eighth of the lease: if the scheduler or its whole host stood still, messages that wait are read
// within that (P10).
Instant Roster::silent_at(const Member& member) const {
  // The successor in an orphaned seat has as long as any other to come: only the job's end needs
  // it.
  if (member.state == SeatState::kOrphaned) return member.heard + patience_;
  const Duration last_call = lease_ / 8;
  const Instant end = member.heard + lease_;
  return member.called ? std::max(end, *member.called + last_call) : end - last_call;
}

// Sets the timer at which the member's silence is checked. A message does not move the timer: if
// the timer ends too early because of that, take_silent() sets it anew. So a message costs nothing
// here.
void Roster::watch(Member& member) {
  if (member.rank == kNoRank || !is_timed(member)) return;
  const Instant at = silent_at(member);
  if (member.timer && *member.timer <= at) return;
  if (member.timer) timers_.erase({*member.timer, member.rank});
  member.timer = at;
  timers_.insert({at, member.rank});
}

std::set<Rank> Roster::take_silent(Instant now) {
  std::set<Rank> silent;
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Member& member = own(at(timers_.begin()->second));
    timers_.erase(timers_.begin());
    member.timer.reset();
    if (!is_timed(member)) continue;
    if (now >= silent_at(member)) {
      if (member.called || member.state == SeatState::kOrphaned) {
        silent.insert(member.rank);
        continue;
      }
      member.called = now;
    }
    watch(member);
  }
  return silent;
}

std::optional<Instant> Roster::deadline() const {
  return timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first);
}

}  // namespace holdfast::controller
