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
  const Index index = jobs_.hosts.size();
  jobs_.hosts.push_back({.name = cat("host", index),
                         .agent = cat("agent", index),
                         .token = token,
                         .run = run,
                         .standby = standby});
  return index;
}

void Election::start_job(const std::string& token, Index hosts, Duration after) {
  for (Index i = 0; i < hosts; ++i) {
    const Index host = add_host(token, jobs_.next_run++, i > 0);
    const Duration later = jobs_.small ? 0s : jobs_.pick_time({0s, 100ms, 700ms, 3s});
    jobs_.timeline.at(jobs_.now() + after + later, [this, host] { schedulers_.start(host); });
  }
}

// Sets up the remains of a job of the same name that was killed: a journal, and perhaps a key.
void Election::leave_remains(const std::string& token) {
  const std::uint64_t run = jobs_.next_run++;
  jobs_.runs[run].token = token;
  jobs_.etcd.journal = run;
  const Index host = add_host(token, run, false);
  jobs_.hosts[host].is_over = true;
  auto& dead = jobs_.schedulers.emplace_back();  // Its index is 0: it is the first.
  dead.host = host;
  dead.alive = false;
  if (jobs_.choices.pick(2) == 0) return;
  const auto lease = jobs_.etcd.grant(jobs_.now(), jobs_.pick_time({kTtl, 700ms}));
  const auto listens = jobs_.choices.pick(2) == 0 ? "there" : "";
  (void)jobs_.etcd.put({.run = run,
                        .host = listens,
                        .host_name = "former",
                        .agent = "former",
                        .attempt = 1,
                        .token_mark = token},
                       lease, 0);
}

void Election::set_up() {
  if (jobs_.small) {
    jobs_.etcd.end_late(900ms);
    faults_left_ = 1;
    client_.go_wrong(1, 1);
    return start_job(kToken, 2, 0s);
  }
  jobs_.etcd.end_late(jobs_.pick_time({0s, 400ms, 900ms}));
  faults_left_ = jobs_.choices.pick(6);
  constexpr std::array<std::uint32_t, 3> kRarities = {4, 10, 2};
  rarity_ = kRarities[jobs_.choices.pick(kRarities.size())];
  constexpr std::array<std::uint32_t, 4> kOdd = {0, 2, 6, 20};
  const std::uint32_t odd = kOdd[jobs_.choices.pick(kOdd.size())];
  constexpr std::array<std::uint32_t, 3> kOddRarities = {40, 8, 2};
  client_.go_wrong(odd, kOddRarities[jobs_.choices.pick(kOddRarities.size())]);
  if (const auto remains = jobs_.choices.pick(4); remains != 0) {
    leave_remains(remains == 3 ? "another" : kToken);
  }
  start_job(kToken, 2 + jobs_.choices.pick(2), 0s);
  const auto other = jobs_.choices.pick(4);
  if (other != 0) start_job(other == 3 ? "another" : kToken, 2, jobs_.pick_time({1s, 4s, 7s}));
}

// All processes of the job are killed, and its user starts it again.
void Election::start_anew(std::uint64_t run, bool by_hand) {
  for (Index p = 0; p < jobs_.schedulers.size(); ++p) schedulers_.die(p, false, "all are killed");
  for (auto& host : jobs_.hosts) host.is_over = true;
  const Duration after = jobs_.pick_time({200ms, 1500ms, 4s});
  const Index first = add_host(kToken, by_hand ? 0 : run, false);
  jobs_.hosts[first].attempt = by_hand ? 0 : 1;  // With --continue its scheduler is a successor.
  jobs_.hosts[first].by_hand_again = by_hand;
  jobs_.timeline.at(jobs_.now() + after, [this, first] { schedulers_.start(first); });
  const Index second = add_host(kToken, jobs_.next_run++, true);
  jobs_.timeline.at(jobs_.now() + after + 200ms, [this, second] { schedulers_.start(second); });
}

void Election::strike(std::uint32_t fault) {
  if (fault == 0) {
    jobs_.ending = true;
    return;
  }
  std::vector<Index> alive;
  for (Index p = 0; p < jobs_.schedulers.size(); ++p) {
    if (jobs_.schedulers[p].alive) alive.push_back(p);
  }
  if (alive.empty()) return;
  const Index p = alive[jobs_.choices.pick(static_cast<std::uint32_t>(alive.size()))];
  ElectionJobs::Scheduler& s = jobs_.schedulers[p];
  ElectionJobs::Host& host = jobs_.hosts[s.host];
  switch (fault) {
    case 1:
      return schedulers_.die(p, true, "it is killed");
    case 2:
      host.is_over = true;
      return schedulers_.die(p, false, "its host is lost");
    case 3:
      s.stopped_until = jobs_.now() + jobs_.pick_time({3s, 700ms, 6s});
      s.disturbed = s.stopped_until;
      return jobs_.tell(cat(jobs_.name(p), " is stopped"));
    case 4: {
      const Duration time = jobs_.pick_time({2500ms, 600ms, 7s, kForEver});
      jobs_.etcd.be_away(jobs_.now(), time, jobs_.choices.pick(2) == 1);
      return jobs_.tell("etcd is away");
    }
    case 5:
      host.cut_until = jobs_.now() + jobs_.pick_time({4s, 1s});
      s.disturbed = host.cut_until;
      return jobs_.tell(cat(jobs_.name(p), "'s host is cut off"));
    case 6: {  // The host is lost; its command is given again on another host.
      if (host.standby) return;
      host.is_over = true;
      schedulers_.die(p, false, "its host is lost");
      const Index again = add_host(host.token, jobs_.next_run++, false);
      return jobs_.timeline.at(jobs_.now() + jobs_.pick_time({100ms, 2s}),
                               [this, again] { schedulers_.start(again); });
    }
    case 7:
      if (!jobs_.etcd.journal || jobs_.runs[*jobs_.etcd.journal].token != kToken) return;
      return start_anew(*jobs_.etcd.journal, jobs_.choices.pick(3) == 2);
    default:  // All of this job is killed, and started again as a new run.
      for (auto& each : jobs_.hosts) each.is_over = each.is_over || each.token == host.token;
      for (Index q = 0; q < jobs_.schedulers.size(); ++q) {
        const bool is_of_job = jobs_.hosts[jobs_.schedulers[q].host].token == host.token;
        if (is_of_job) schedulers_.die(q, false, "all are killed");
      }
      return start_job(host.token, 2, jobs_.pick_time({200ms, 2s}));
  }
}

void Election::maybe_fault() {
  constexpr std::uint32_t kKinds = 9;
  constexpr std::uint32_t kOfSmall = 4;
  if (faults_left_ == 0) return;
  const auto fault = jobs_.choices.pick(1 + (jobs_.small ? kOfSmall : kKinds), rarity_);
  if (fault == 0) return;
  --faults_left_;
  ++struck_;
  strike(fault - 1);
}

void Election::pass_time_until(Instant end) {
  jobs_.timeline.pass_until(end, [this] { return !jobs_.violation.empty(); });
}

// After the last fault, a scheduler leads, unless none can; and those that wait know for whom.
void Election::check_settled() {
  jobs_.etcd.settle(jobs_.now());
  const ElectionJobs::Scheduler* leads = schedulers_.leader();
  const bool gone = jobs_.etcd.away_until() > jobs_.now();
  for (Index p = 0; p < jobs_.schedulers.size(); ++p) {
    const ElectionJobs::Scheduler& s = jobs_.schedulers[p];
    if (!s.alive || &s == leads) continue;
    if (s.lead) jobs_.violate(cat("L1: ", jobs_.name(p), " leads, and does not serve"));
    if (gone) jobs_.violate(cat("L1: ", jobs_.name(p), " waits for etcd for ever"));
    const bool knows_none = leads && s.stands_by == 0;
    if (knows_none) jobs_.violate(cat("L1: ", jobs_.name(p), " does not know who leads"));
    // A scheduler may wait until its agent ends it, if it stands by and has never known a leader,
    // or if there is no journal and it has seen none.
    const bool may_wait = s.stands_by == 0 ? s.options.standby : !jobs_.etcd.journal && !s.saw_job;
    if (!leads && !may_wait) jobs_.violate(cat("L1: ", jobs_.name(p), " waits for ever"));
  }
}

Outcome Election::run() {
  set_up();
  while (jobs_.now() < (jobs_.small ? kFaultsFor / 3 : kFaultsFor) && jobs_.violation.empty()) {
    pass_time_until(jobs_.now() + kBetweenFaults);
    maybe_fault();
  }
  jobs_.quiet = true;
  for (int jobs = 0; jobs_.violation.empty(); ++jobs) {  // Every job that is served must end.
    pass_time_until(jobs_.now() + kQuiet);
    if (jobs_.violation.empty()) check_settled();
    if (!schedulers_.leader()) break;
    if (jobs > 6) jobs_.violate("L1: a job does not end");
    jobs_.ending = true;
  }
  return {.violation = jobs_.violation,
          .reason = {},
          .success = true,
          .hash = jobs_.log.hash(),
          .transitions = schedulers_.steps(),
          .faults = struck_,
          .time = jobs_.now()};
}

bool is_election(const std::string& world) {
  return world == "election" || world == "candidates";
}

Outcome simulate_election(const std::string& world, Choices& choices,
                          std::vector<std::string>* log) {
  return Election(world == "candidates", choices, log).run();
}

}  // namespace holdfast::sim
