#include "sim/election_world.h"

#include <array>

namespace holdfast::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFaultsFor = 9s;         // The time in which faults happen.
constexpr Duration kBetweenFaults = 300ms;  // The time between two chances of a fault.
constexpr Duration kQuiet = 25s;            // The time within which all is settled afterwards.
constexpr Duration kForEver = 1000s;
const std::string kToken = "ours";

}  // namespace

Election::Index Election::add_host(const std::string& token, std::uint64_t run, bool standby) {
  const Index index = hosts_.size();
  hosts_.push_back({.name = cat("host", index),
                    .agent = cat("agent", index),
                    .token = token,
                    .run = run,
                    .standby = standby});
  return index;
}

void Election::start_scheduler(Index index) {
  Host& host = hosts_[index];
  if (host.is_over) return;
  if (!host.by_hand_again) ++host.attempt;
  const Index p = schedulers_.size();
  Scheduler& s = schedulers_.emplace_back();
  s.host = index;
  s.options = {.self = {.run = host.run,
                        .host_name = host.name,
                        .agent = host.by_hand_again ? "" : host.agent,
                        .attempt = host.attempt,
                        .token_mark = host.token},
               .new_run = next_run_++,
               .standby = host.standby,
               .by_hand_again = host.by_hand_again,
               .lease = kTtl,
               .patience = kPatience};
  s.started = now_;
  s.machine.emplace(s.options, now_);
  tell(cat(name(p), " starts, attempt ", host.attempt, host.standby ? ", to stand by" : ""));
  for_process(p, 0s, [this, p] { step(p, election::TimePassed{}); });
}

void Election::start_job(const std::string& token, Index hosts, Duration after) {
  for (Index i = 0; i < hosts; ++i) {
    const Index host = add_host(token, next_run_++, i > 0);
    const Duration later = small_ ? 0s : pick_time({0s, 100ms, 700ms, 3s});
    at(now_ + after + later, [this, host] { start_scheduler(host); });
  }
}

// Sets up the remains of a job of the same name that was killed: a journal, and perhaps a key.
void Election::leave_remains(const std::string& token) {
  const std::uint64_t run = next_run_++;
  runs_[run].token = token;
  etcd_.journal = run;
  const Index host = add_host(token, run, false);
  hosts_[host].is_over = true;
  Scheduler& dead = schedulers_.emplace_back();  // Its index is 0: it is the first.
  dead.host = host;
  dead.alive = false;
  if (choices_.pick(2) == 0) return;
  const auto lease = etcd_.grant(now_, pick_time({kTtl, 700ms}));
  const auto listens = choices_.pick(2) == 0 ? "there" : "";
  (void)etcd_.put({.run = run,
                   .host = listens,
                   .host_name = "former",
                   .agent = "former",
                   .attempt = 1,
                   .token_mark = token},
                  lease, 0);
}

void Election::set_up() {
  if (small_) {
    etcd_.end_late(900ms);
    faults_left_ = odd_left_ = 1;
    return start_job(kToken, 2, 0s);
  }
  etcd_.end_late(pick_time({0s, 400ms, 900ms}));
  faults_left_ = choices_.pick(6);
  constexpr std::array<std::uint32_t, 3> kRarities = {4, 10, 2};
  rarity_ = kRarities[choices_.pick(kRarities.size())];
  constexpr std::array<std::uint32_t, 4> kOdd = {0, 2, 6, 20};
  odd_left_ = kOdd[choices_.pick(kOdd.size())];
  constexpr std::array<std::uint32_t, 3> kOddRarities = {40, 8, 2};
  odd_rarity_ = kOddRarities[choices_.pick(kOddRarities.size())];
  if (const auto remains = choices_.pick(4); remains != 0) {
    leave_remains(remains == 3 ? "another" : kToken);
  }
  start_job(kToken, 2 + choices_.pick(2), 0s);
  const auto other = choices_.pick(4);
  if (other != 0) start_job(other == 3 ? "another" : kToken, 2, pick_time({1s, 4s, 7s}));
}

// All processes of the job are killed, and its user starts it again.
void Election::start_anew(std::uint64_t run, bool by_hand) {
  for (Index p = 0; p < schedulers_.size(); ++p) die(p, false, "all are killed");
  for (auto& host : hosts_) host.is_over = true;
  const Duration after = pick_time({200ms, 1500ms, 4s});
  const Index first = add_host(kToken, by_hand ? 0 : run, false);
  hosts_[first].attempt = by_hand ? 0 : 1;  // With --continue its scheduler is a successor.
  hosts_[first].by_hand_again = by_hand;
  at(now_ + after, [this, first] { start_scheduler(first); });
  const Index second = add_host(kToken, next_run_++, true);
  at(now_ + after + 200ms, [this, second] { start_scheduler(second); });
}

void Election::strike(std::uint32_t fault) {
  if (fault == 0) {
    ending_ = true;
    return;
  }
  std::vector<Index> alive;
  for (Index p = 0; p < schedulers_.size(); ++p) {
    if (schedulers_[p].alive) alive.push_back(p);
  }
  if (alive.empty()) return;
  const Index p = alive[choices_.pick(static_cast<std::uint32_t>(alive.size()))];
  Scheduler& s = schedulers_[p];
  Host& host = hosts_[s.host];
  switch (fault) {
    case 1:
      return die(p, true, "it is killed");
    case 2:
      host.is_over = true;
      return die(p, false, "its host is lost");
    case 3:
      s.stopped_until = now_ + pick_time({3s, 700ms, 6s});
      s.disturbed = s.stopped_until;
      return tell(cat(name(p), " is stopped"));
    case 4: {
      const Duration time = pick_time({2500ms, 600ms, 7s, kForEver});
      etcd_.be_away(now_, time, choices_.pick(2) == 1);
      return tell("etcd is away");
    }
    case 5:
      host.cut_until = now_ + pick_time({4s, 1s});
      s.disturbed = host.cut_until;
      return tell(cat(name(p), "'s host is cut off"));
    case 6: {  // The host is lost; its command is given again on another host.
      if (host.standby) return;
      host.is_over = true;
      die(p, false, "its host is lost");
      const Index again = add_host(host.token, next_run_++, false);
      return at(now_ + pick_time({100ms, 2s}), [this, again] { start_scheduler(again); });
    }
    case 7:
      if (!etcd_.journal || runs_[*etcd_.journal].token != kToken) return;
      return start_anew(*etcd_.journal, choices_.pick(3) == 2);
    default:  // All of this job is killed, and started again as a new run.
      for (auto& each : hosts_) each.is_over = each.is_over || each.token == host.token;
      for (Index q = 0; q < schedulers_.size(); ++q) {
        if (hosts_[schedulers_[q].host].token == host.token) die(q, false, "all are killed");
      }
      return start_job(host.token, 2, pick_time({200ms, 2s}));
  }
}

void Election::maybe_fault() {
  constexpr std::uint32_t kKinds = 9;
  constexpr std::uint32_t kOfSmall = 4;
  if (faults_left_ == 0) return;
  const auto fault = choices_.pick(1 + (small_ ? kOfSmall : kKinds), rarity_);
  if (fault == 0) return;
  --faults_left_;
  ++struck_;
  strike(fault - 1);
}

void Election::pass_time_until(Instant end) {
  while (violation_.empty() && !due_.empty() && due_.begin()->first.first <= end) {
    auto next = due_.extract(due_.begin());
    now_ = next.key().first;
    next.mapped()();
  }
  now_ = end;
}

const Election::Scheduler* Election::leader() const {
  if (!etcd_.key()) return nullptr;
  const Scheduler& s = schedulers_[etcd_.owner()];
  return s.alive && s.serves ? &s : nullptr;
}

// After the last fault, a scheduler leads, unless none can; and those that wait know for whom.
void Election::check_settled() {
  etcd_.settle(now_);
  const Scheduler* leads = leader();
  const bool gone = etcd_.away_until() > now_;
  for (Index p = 0; p < schedulers_.size(); ++p) {
    const Scheduler& s = schedulers_[p];
    if (!s.alive || &s == leads) continue;
    if (s.lead) violate(cat("L1: ", name(p), " leads, and does not serve"));
    if (gone) violate(cat("L1: ", name(p), " waits for etcd for ever"));
    if (leads && s.stands_by == 0) violate(cat("L1: ", name(p), " does not know who leads"));
    // A scheduler may wait until its agent ends it, if it stands by and has never known a leader,
    // or if there is no journal and it has seen none.
    const bool may_wait = s.stands_by == 0 ? s.options.standby : !etcd_.journal && !s.saw_job;
    if (!leads && !may_wait) violate(cat("L1: ", name(p), " waits for ever"));
  }
}

Outcome Election::run() {
  set_up();
  while (now_ < (small_ ? kFaultsFor / 3 : kFaultsFor) && violation_.empty()) {
    pass_time_until(now_ + kBetweenFaults);
    maybe_fault();
  }
  quiet_ = true;
  for (int jobs = 0; violation_.empty(); ++jobs) {  // Every job that is served must end.
    pass_time_until(now_ + kQuiet);
    if (violation_.empty()) check_settled();
    if (!leader()) break;
    if (jobs > 6) violate("L1: a job does not end");
    ending_ = true;
  }
  return {.violation = violation_,
          .reason = {},
          .success = true,
          .hash = hash_,
          .transitions = steps_,
          .faults = struck_,
          .time = now_};
}

bool is_election(const std::string& world) {
  return world == "election" || world == "candidates";
}

Outcome simulate_election(const std::string& world, Choices& choices,
                          std::vector<std::string>* log) {
  return Election(world == "candidates", choices, log).run();
}

}  // namespace holdfast::sim
