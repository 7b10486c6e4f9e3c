// Who holds which place: registration, ranks, leases, deaths.
#include <algorithm>
#include <charconv>

#include "base/assert.h"
#include "base/text.h"
#include "core/controller/machine.h"

namespace holdfast::controller {
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
  for (const auto& [node_id, member] : members) nodes.emplace_back(member.host, node_id);
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : naturally_before(a.second, b.second);
  });
  std::vector<std::string> order;
  for (auto& node : nodes) order.push_back(std::move(node.second));
  return order;
}

}  // namespace

Rank Machine::rank_of(const std::string& node_id) const {
  const auto found = members_.find(node_id);
  return found == members_.end() ? kNoRank : found->second.rank;
}

Rank Machine::rank_at(Link link) const {
  const auto found = nodes_.find(link);
  return found == nodes_.end() ? kNoRank : rank_of(found->second);
}

Member* Machine::member_at(Rank rank) {
  return &members_.at(lease(rank).node_id);
}

bool Machine::lease_runs(const Member& member) const {
  return !member.dead && !member.lost && !member.left;
}

// A process that lives and has joined before may take its time between two steps (an evaluation);
// one that is gone, or a successor that never joins, may not.
bool Machine::waits_for_replacement() const {
  if (phase_ != Phase::kStopping && phase_ != Phase::kRepairing) return false;
  const bool starts = record_.generation <= 1;  // User code may prepare for long.
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const Member& member = entry.second;
    if (record_.ranks[static_cast<std::size_t>(member.rank)].finished) return false;
    return member.dead || member.lost || (!member.joined && !starts);
  });
}

void Machine::attach(Member& member, Link link, const wire::Register& m) {
  if (member.link != 0 && member.link != link) {
    nodes_.erase(member.link);
    emit(Close{member.link});
  }
  nodes_[link] = m.node_id;
  member.link = link;
  member.host = m.host;
  member.memory = m.memory;
  member.pid = m.pid;
  member.incarnation = m.incarnation;
  member.attempt = m.attempt;
  hear(member);
  member.lost = false;
}

void Machine::refuse(Link link, std::string reason) {
  send(link, wire::Refused{std::move(reason)});
  emit(Close{link});
}

// Why this process can not take part: a process of the job is on a host with other memory. Empty:
// it can.
std::string Machine::elsewhere(const wire::Register& m) const {
  if (!options_.one_host) return {};
  const auto other = std::find_if(members_.begin(), members_.end(), [&](const auto& entry) {
    return !entry.second.memory.empty() && entry.second.memory != m.memory;
  });
  if (other == members_.end()) return {};
  const bool same_name = other->second.host == m.host;
  return cat("node '", m.node_id, "' is on host ", m.host, ", but node '", other->first,
             "' is or was on ", same_name ? "another host or container of that name" : "host ",
             same_name ? "" : other->second.host,
             ": so far all workers of a job share one host's memory; start them all on one host, "
             "with one /dev/shm and one process namespace (docker: --ipc and --pid)");
}

void Machine::receive(Link link, const wire::Register& m) {
  if (phase_ == Phase::kEnded) {
    send(link, wire::JobEnded{record_.success, record_.reason});
  } else if (m.protocol != wire::kProtocol) {
    refuse(link, cat("this process speaks protocol ", m.protocol, " and the scheduler ",
                     wire::kProtocol, ": start all processes with the same release of Holdfast"));
  } else if (m.job != record_.job) {
    refuse(link, cat("the scheduler at this address serves job '", record_.job, "', not '", m.job,
                     "': give every job its own port"));
  } else if (record_.ranks.empty()) {
    admit_early(link, m);
  } else if (const Rank rank = rank_of(m.node_id); rank == kNoRank) {
    refuse(link,
           cat("all ", record_.ranks.size(), " places of the job are taken and none is called '",
               m.node_id, "': this worker is one too many (see MS_WORKER_NUM, MS_NODE_ID)"));
  } else {
    admit(link, rank, m);
  }
}

void Machine::admit_early(Link link, const wire::Register& m) {
  const auto found = members_.find(m.node_id);
  if (found != members_.end() && found->second.incarnation != m.incarnation &&
      found->second.attempt >= m.attempt) {
    refuse(link, cat("another living process is registered as node '", m.node_id,
                     "': give every worker its own MS_NODE_ID"));
    return;
  }
  if (const std::string why = elsewhere(m); !why.empty()) {
    end(false, why);
    send(link, wire::JobEnded{false, why});
    return;
  }
  attach(members_[m.node_id], link, m);
  if (members_.size() == static_cast<std::size_t>(options_.world_size)) {
    assemble();
  } else {
    send(link,
         wire::Waiting{cat(members_.size(), " of ", options_.world_size, " workers are here")});
  }
}

void Machine::assemble() {
  for (const auto& node_id : in_rank_order(members_)) {
    Member& member = members_.at(node_id);
    member.rank = world_size();
    record_.ranks.push_back({node_id, member.incarnation, member.attempt, false, 0, member.pid});
  }
  begin("the job starts");
  for (Rank rank = 0; rank < world_size(); ++rank) welcome(rank);
  for (const auto& held : std::vector<wire::Lease>(record_.ranks)) heed_agents(held.node_id);
}

void Machine::admit(Link link, Rank rank, const wire::Register& m) {
  Member& member = *member_at(rank);
  if (m.incarnation == lease(rank).incarnation) {
    attach(member, link, m);
    welcome(rank);
    return;
  }
  if (const std::string why = elsewhere(m); !why.empty()) return refuse(link, why);
  // An agent gives a place to one process at a time: a later one proves that the former is dead.
  const bool succeeds = m.attempt > lease(rank).attempt;
  // Of a rank that has ended and left nobody has to take the place: the job's end is waited for.
  const bool has_ended = member.left && lease(rank).finished;
  if (m.attempt < lease(rank).attempt) {
    refuse(link, cat("rank ", rank, " has been given to a newer process"));
  } else if (succeeds || (!has_ended && (member.dead || member.lost))) {
    take_over(rank, link, m);
  } else if (has_ended) {
    knocks_[link] = m;
    send(link, wire::Waiting{cat("rank ", rank, " has ended its training already")});
  } else {
    knocks_[link] = m;
    const auto left = std::chrono::ceil<std::chrono::seconds>(member.heard + options_.lease - now_);
    send(link,
         wire::Waiting{cat("rank ", rank, " is leased to process ", member.pid,
                           member.host.empty() ? "" : " on ", member.host, " for ", left.count(),
                           " s more unless it is seen to be dead before (MS_NODE_TIMEOUT)")});
  }
}

void Machine::take_over(Rank rank, Link link, const wire::Register& m) {
  const bool was_known_dead = member_at(rank)->dead || member_at(rank)->lost;
  if (!was_known_dead) died(m.node_id, "was replaced", false, 0);
  if (phase_ == Phase::kEnded) {
    send(link, wire::JobEnded{record_.success, record_.reason});
    return;
  }
  knocks_.erase(link);
  lease(rank).pid = m.pid;
  lease(rank).incarnation = m.incarnation;
  lease(rank).attempt = m.attempt;
  lease(rank).finished = false;  // Its successor has to end in good order itself.
  Member& member = *member_at(rank);
  member.dead = member.left = member.joined = false;
  attach(member, link, m);
  if (phase_ == Phase::kStopping) {
    store();
  } else {
    // A finished rank's death stopped nobody; its successor still has to be told where to go on.
    // One store for both: a new lease within a generation that is running must never be on record.
    begin(cat("rank ", rank, " came back"));
  }
  welcome(rank);
  heed_agents(m.node_id);
}

// Tells a process all that it may have missed.
void Machine::welcome(Rank rank) {
  const Link link = member_at(rank)->link;
  send(link, wire::Accepted{rank, world_size(), record_.run_id});
  if (lease(rank).finished) {
    send(link, wire::Farewell{});
  } else if (phase_ == Phase::kRunning) {
    send(link, wire::Stop{record_.generation, cause_});
    send(link, wire::Resume{record_.generation, record_.version, ended_rank()});
  } else {
    send(link, wire::Stop{record_.generation, cause_});
    if (phase_ == Phase::kRepairing && mending_.contains(rank)) send_repair(rank);
  }
}

void Machine::receive(Link link, const wire::AgentState& m) {
  if (phase_ == Phase::kEnded) {
    send(link, wire::JobEnded{record_.success, record_.reason});
    return;
  }
  if (m.job != record_.job) {
    refuse(link, cat("the scheduler at this address serves job '", record_.job, "', not '", m.job,
                     "': give every job its own port"));
    return;
  }
  agents_[link] = m;
  for (const auto& slot : m.slots) {
    heed(slot);
    const auto member = members_.find(slot.node_id);
    if (member == members_.end() || !member->second.lost) continue;
    if (member->second.incarnation == slot.incarnation && slot.alive) {
      send(link, wire::Evict{slot.node_id, slot.incarnation});  // It may have missed the first.
    }
  }
  maybe_nobody_came();
}

// What an agent said of a process may have come before the process's own Register.
void Machine::heed_agents(const std::string& node_id) {
  for (const auto& [link, state] : agents_) {
    for (const auto& slot : state.slots) {
      if (slot.node_id == node_id) heed(slot);
    }
  }
}

void Machine::heed(const wire::Slot& slot) {
  const auto found = members_.find(slot.node_id);
  if (found == members_.end()) return;
  tell_how(found->second, slot);
  const Member& member = found->second;
  const bool same = slot.attempt == member.attempt && slot.incarnation == member.incarnation;
  const bool replaced = member.attempt != 0 && slot.attempt > member.attempt;
  if (same && slot.alive) return;
  if (!same && !replaced) return;  // Said before this incarnation was accepted.
  const bool in_good_order = same && slot.exit_code == 0;
  died(slot.node_id, slot.last_words.empty() ? "died" : slot.last_words, in_good_order,
       slot.detected_ns);
}

// A death is told at once; how it came, its agent learns when the memory is gone.
void Machine::tell_how(Member& member, const wire::Slot& slot) {
  if (slot.detected_ns == 0 || slot.detected_ns != member.detected_ns) return;
  if (slot.last_words == member.how || member.rank == kNoRank) return;
  member.how = slot.last_words;
  emit(Note{Note::Kind::kHow, record_.generation, record_.version, member.rank,
            cat("rank ", member.rank, " (process ", member.dead_pid, ") ", member.how), 0});
}

void Machine::died(const std::string& node_id, const std::string& how, bool in_good_order,
                   std::uint64_t detected_ns) {
  Member& member = members_.at(node_id);
  if (member.dead || member.left) return;
  member.how = how;
  member.dead_pid = member.pid;
  member.detected_ns = detected_ns;
  const Rank rank = rank_of(node_id);
  if (rank == kNoRank) {  // Before the ranks are given it just makes room.
    nodes_.erase(member.link);
    members_.erase(node_id);
    return;
  }
  member.dead = true;
  member.left = in_good_order;
  if (!in_good_order) {  // What it said before may still be under way: it is no longer heard.
    nodes_.erase(member.link);
    member.link = 0;
  }
  if (in_good_order && lease(rank).finished) {
    maybe_all_left();
  } else if (in_good_order && member.joined && phase_ != Phase::kEnded) {
    end(false, cat("rank ", rank, " ended (exit code 0) after step ", member.version,
                   " without ending its training"));
  } else if (in_good_order) {
    maybe_all_left();
    maybe_plan();  // Who wants to train with it must hear that it will not.
  } else {
    rank_lost(rank, cat("rank ", rank, " (process ", member.pid, ") ", how), detected_ns);
  }
  answer_knock(node_id);
}

// The newest one gets the place: of an older one the end may not have been heard yet.
void Machine::answer_knock(const std::string& node_id) {
  const Rank rank = rank_of(node_id);
  const auto knock = std::find_if(knocks_.rbegin(), knocks_.rend(), [&](const auto& entry) {
    return entry.second.node_id == node_id;
  });
  if (knock == knocks_.rend() || rank == kNoRank || phase_ == Phase::kEnded) return;
  if (member_at(rank)->left && lease(rank).finished) return;  // Nobody is needed there.
  const auto [link, who] = *knock;
  take_over(rank, link, who);
}

void Machine::hear(Member& member) {
  member.heard = now_;
  member.called.reset();
}

// When its silence is to be looked at. Whoever seems silent has a last call of an eighth of the
// lease: had we, or all of us, stood still meanwhile, what it said is heard within it (P10).
Instant Machine::silent_at(const Member& member) const {
  const Duration last_call = options_.lease / 8;
  const Instant end = member.heard + options_.lease;
  return member.called ? std::max(end, *member.called + last_call) : end - last_call;
}

void Machine::check_leases() {
  std::vector<std::string> silent;
  for (auto& [node_id, member] : members_) {
    if (!lease_runs(member) || now_ < silent_at(member)) continue;
    if (member.called) {
      silent.push_back(node_id);
    } else {
      member.called = now_;
    }
  }
  for (const auto& node_id : silent) {
    Member& member = members_.at(node_id);
    member.lost = true;
    member.how = "was not heard of for longer than its lease";
    tell_agents(wire::Evict{node_id, member.incarnation});
    const Rank rank = rank_of(node_id);
    if (lease(rank).finished) {
      member.left = true;
    } else {
      rank_lost(rank, cat("rank ", rank, " (process ", member.pid, ") ", member.how), 0);
    }
    answer_knock(node_id);
  }
  maybe_all_left();
}

std::string Machine::missing() const {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  if (record_.ranks.empty()) {
    for (const auto& [node_id, member] : members_) add(cat("node '", node_id, "' is here"));
    return text.empty() ? "none is here" : text + "; the others never registered";
  }
  for (Rank rank = 0; rank < world_size(); ++rank) {
    const Member& member = members_.at(record_.ranks[static_cast<std::size_t>(rank)].node_id);
    if (member.dead || member.lost) {
      add(cat("rank ", rank, " ", member.how, " and no process has taken its place"));
    } else if (phase_ == Phase::kStopping && !reports_.contains(rank) &&
               !record_.ranks[static_cast<std::size_t>(rank)].finished) {
      add(cat("rank ", rank, " (process ", member.pid, ") lives but has not reported"));
    } else if (mending_.contains(rank)) {
      add(cat("rank ", rank, " (process ", member.pid, ") has not repaired its state"));
    }
  }
  return text;
}

}  // namespace holdfast::controller
