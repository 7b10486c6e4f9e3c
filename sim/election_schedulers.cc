#include "sim/election_schedulers.h"

#include <algorithm>
#include <utility>

namespace holdfast::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 12s;  // For answers of etcd.
constexpr Duration kExcuse = 6s;     // How long after a disturbance a process may miss something.

}  // namespace

// ---- A process ----

void ElectionSchedulers::start(Index index) {
  Host& host = jobs_.hosts[index];
  if (host.is_over) return;
  if (!host.by_hand_again) ++host.attempt;
  const Index p = jobs_.schedulers.size();
  Scheduler& s = jobs_.schedulers.emplace_back();
  s.host = index;
  s.options = {.self = {.run = host.run,
                        .host_name = host.name,
                        .agent = host.by_hand_again ? "" : host.agent,
                        .attempt = host.attempt,
                        .token_mark = host.token},
               .new_run = jobs_.next_run++,
               .standby = host.standby,
               .by_hand_again = host.by_hand_again,
               .lease = kTtl,
               .patience = kPatience};
  s.started = jobs_.now();
  s.machine.emplace(s.options, jobs_.now());
  jobs_.tell(
      cat(jobs_.name(p), " starts, attempt ", host.attempt, host.standby ? ", to stand by" : ""));
  jobs_.for_process(p, 0s, [this, p] { step(p, election::TimePassed{}); });
}

void ElectionSchedulers::step(Index p, const election::Event& event) {
  Scheduler& s = jobs_.schedulers[p];
  if (!s.alive || s.lead) return;
  jobs_.log.fold(static_cast<std::uint64_t>(jobs_.now().count()) << 8 | p << 4 | event.index());
  ++steps_;
  for (const auto& action : s.machine->step(jobs_.now(), event)) {
    std::visit([&](const auto& a) { carry_out(p, a); }, action);
  }
  const auto deadline = s.machine->deadline();
  if (!deadline || s.timer == deadline) return;
  s.timer = deadline;
  jobs_.for_process(p, *deadline - jobs_.now(), [this, p] { step(p, election::TimePassed{}); });
}

void ElectionSchedulers::carry_out(Index p, const election::Look&) {
  client_.request<election::Looked>(
      p, false, [this, asked = jobs_.now()] { return jobs_.etcd.look(asked); },
      [this, p](const std::optional<election::Looked>& seen) {
        Scheduler& s = jobs_.schedulers[p];
        const bool is_served = seen && seen->key && seen->run == seen->key->leader.run;
        if (is_served) s.saw_job |= seen->key->leader.token_mark == s.options.self.token_mark;
        if (seen) return step(p, *seen);
        step(p, election::Failed{{Blame::kWorld, "no answer"}});
      });
}

void ElectionSchedulers::carry_out(Index p, const election::Remove& remove) {
  client_.request<bool>(
      p, true,
      [this, created = remove.created] {
        const bool removed = jobs_.etcd.remove(created);
        if (removed && jobs_.schedulers[jobs_.etcd.owner()].alive) {
          jobs_.violate("E8: the key of one that lives is removed");
        }
        return removed;
      },
      [this, p](std::optional<bool> done) { step(p, election::Removed{done.value_or(false)}); });
}

void ElectionSchedulers::carry_out(Index p, const election::Try& what) {
  jobs_.hosts[jobs_.schedulers[p].host].tried.insert(what.leader.run);
  client_.request<std::int64_t>(
      p, true, [this] { return jobs_.etcd.grant(jobs_.now()); },
      [this, p, asked = jobs_.now(), leader = what.leader](std::optional<std::int64_t> lease) {
        if (!lease) return step(p, election::Failed{{Blame::kWorld, "no answer"}});
        jobs_.schedulers[p].lease = *lease;
        jobs_.schedulers[p].lease_until = asked + kTtl;
        jobs_.for_process(p, kTtl / 4, [this, p] { keep_alive(p); });
        put(p, leader, *lease);
      });
}

void ElectionSchedulers::put(Index p, const election::Leader& leader, std::int64_t lease) {
  const auto put = [this, p, leader, lease] { return jobs_.etcd.put(leader, lease, p); };
  client_.request<bool>(p, true, put, [this, p, lease](std::optional<bool> done) {
    client_.request<election::Looked>(
        p, false, [this] { return jobs_.etcd.look(jobs_.now()); },
        [this, p, lease, done](const std::optional<election::Looked>& there) {
          const Error why{Blame::kWorld, done ? "" : "no answer"};
          if (there) step(p, election::Tried{lease, there->key, why});
          if (!there) step(p, election::Failed{{Blame::kWorld, "no answer"}});
          if (!jobs_.schedulers[p].lead) drop_lease(p);
        });
  });
}

void ElectionSchedulers::drop_lease(Index p) {
  const auto lease = std::exchange(jobs_.schedulers[p].lease, 0);
  if (lease != 0 && client_.reaches_etcd(p)) jobs_.etcd.revoke(lease, jobs_.now());
}

// Plays the thread that keeps the scheduler's lease alive.
void ElectionSchedulers::keep_alive(Index p) {
  Scheduler& s = jobs_.schedulers[p];
  if (s.lease == 0) return;
  if (client_.reaches_etcd(p)) {
    if (!jobs_.etcd.keep_alive(s.lease, jobs_.now())) return die(p, true, "its lease has ended");
    s.lease_until = jobs_.now() + kTtl;
  } else if (jobs_.now() >= s.lease_until) {
    return die(p, true, "its lease may have ended");
  }
  jobs_.for_process(p, kTtl / 4, [this, p] { keep_alive(p); });
}

void ElectionSchedulers::carry_out(Index p, const election::Ask& ask) {
  const Index other =
      jobs_.etcd.owner();  // Any scheduler may be there: it answers for its key only.
  const auto is_reached = [this, p, other, created = ask.key.created] {
    const Scheduler& s = jobs_.schedulers[other];
    const auto open = [&](Index host) { return jobs_.hosts[host].cut_until <= jobs_.now(); };
    return s.alive && s.lead && s.lead->key.created == created && s.stopped_until <= jobs_.now() &&
           s.options.self.token_mark == jobs_.schedulers[p].options.self.token_mark &&
           open(s.host) && open(jobs_.schedulers[p].host);
  };
  const bool answers = is_reached();
  jobs_.for_process(p, answers ? 5ms : kAskLimit, [this, p, answers, created = ask.key.created] {
    step(p, election::Asked{created, answers});
  });
}

void ElectionSchedulers::stand_by(Index p, std::uint64_t run) {
  Scheduler& s = jobs_.schedulers[p];
  s.stands_by = jobs_.hosts[s.host].part_of = run;
  jobs_.tell(cat(jobs_.name(p), " stands by for run ", run));
}

void ElectionSchedulers::carry_out(Index p, const election::Found& found) {
  if (found.is_news) stand_by(p, found.key.leader.run);
}

void ElectionSchedulers::carry_out(Index p, const election::EndWithJob&) {
  const bool right = std::any_of(jobs_.runs.begin(), jobs_.runs.end(), [&](const auto& run) {
    return run.second.token == jobs_.hosts[jobs_.schedulers[p].host].token && run.second.ended &&
           *run.second.ended >= jobs_.schedulers[p].started;
  });
  if (!right) jobs_.violate("E6: a scheduler ends with a job that has not ended");
  end(p, "the job has ended");
}

void ElectionSchedulers::carry_out(Index p, const election::Refuse&) {
  const Scheduler& own = jobs_.schedulers[p];
  const bool right =
      std::any_of(jobs_.schedulers.begin(), jobs_.schedulers.end(), [&](const Scheduler& s) {
        const bool lived =
            s.alive || (s.lead && jobs_.runs[s.lead->key.leader.run].lived >= own.started);
        return lived && jobs_.hosts[s.host].token != jobs_.hosts[own.host].token;
      });
  if (!right) jobs_.violate("E9: its own job is refused");
  end(p, "another job has its name");
}

void ElectionSchedulers::carry_out(Index p, const election::GiveUp&) {
  const Instant excused =
      std::max(jobs_.schedulers[p].disturbed, jobs_.etcd.away_until()) + kPatience + kAskLimit;
  if (jobs_.now() > excused) jobs_.violate("E5: a scheduler gives up though etcd answers");
  end(p, "it gives up");
}

// The scheduler exits by itself, and its agent starts no other.
void ElectionSchedulers::end(Index p, const std::string& why) {
  die(p, false, why);
  jobs_.hosts[jobs_.schedulers[p].host].is_over = true;
}

void ElectionSchedulers::die(Index p, bool restarts, const std::string& why) {
  Scheduler& s = jobs_.schedulers[p];
  if (!s.alive) return;
  jobs_.tell(cat(jobs_.name(p), " ends: ", why));
  s.alive = false;
  s.lease = 0;  // Nobody keeps the lease alive, so it runs out.
  if (s.lead) jobs_.runs[s.lead->key.leader.run].lived = jobs_.now();
  if (!restarts) return;
  const Duration after = jobs_.quiet || jobs_.choices.pick(2, 3) == 0 ? 100ms : 4s;
  jobs_.timeline.at(jobs_.now() + after, [this, host = s.host] { start(host); });
}

// ---- A scheduler that leads ----

void ElectionSchedulers::carry_out(Index p, const election::Lead& lead) {
  Scheduler& s = jobs_.schedulers[p];
  Host& host = jobs_.hosts[s.host];
  const std::uint64_t run = lead.key.leader.run;
  jobs_.tell(cat(jobs_.name(p), lead.takes_over ? " takes over run " : " leads run ", run));
  s.lead = lead;
  s.led_at = jobs_.now();
  host.part_of = run;
  if (jobs_.runs[run].token.empty()) jobs_.runs[run].token = host.token;
  if (lead.takes_over) {
    const bool is_its_own = run == host.run || host.by_hand_again || host.tried.contains(run);
    if (jobs_.runs[run].token != host.token) {
      jobs_.violate("E9: a job of another token is taken over");
    }
    if (!is_its_own && !lived_since(run, s.started)) {
      jobs_.violate("E7: a run is taken over whose scheduler has not lived meanwhile");
    }
  }
  const bool is_slow = !jobs_.quiet && !jobs_.small && jobs_.choices.pick(4, 4) != 0;
  jobs_.for_process(p, is_slow ? 2500ms : 5ms, [this, p] { open_journal(p); });
}

bool ElectionSchedulers::lived_since(std::uint64_t run, Instant since) const {
  return jobs_.runs.at(run).lived >= since ||
         std::any_of(jobs_.schedulers.begin(), jobs_.schedulers.end(), [&](const Scheduler& other) {
           return other.alive && other.lead && other.lead->key.leader.run == run;
         });
}

controller::Candidate ElectionSchedulers::candidate(Index p) const {
  const Scheduler& s = jobs_.schedulers[p];
  const std::uint64_t run = s.lead->key.leader.run;
  const std::uint64_t attempt = s.options.self.attempt;
  return {.attempt = s.lead->takes_over ? std::max<std::uint64_t>(attempt, 2) : attempt,
          .by_hand_again = s.options.by_hand_again,
          .run = run,
          .world_size = 1,
          .of_others = s.lead->takes_over && run != s.options.self.run};
}

void ElectionSchedulers::open_journal(Index p) {
  using Found = std::optional<std::uint64_t>;
  client_.request<Found>(
      p, false, [this] { return jobs_.etcd.journal; },
      [this, p](const std::optional<Found>& found) {
        if (!found) return die(p, true, "it can not load the journal");
        std::optional<wire::Formation> stored;
        if (*found) stored.emplace().run_id = **found;
        const auto word = controller::choose_takeover(candidate(p), stored);
        if (word == controller::Takeover::kGoOn) return publish(p);
        if (word == controller::Takeover::kBegin) return begin(p);
        drop_lease(p);
        end(p, "it is not needed");
      });
}

void ElectionSchedulers::begin(Index p) {
  const auto store = [this, p] {
    if (!client_.holds(p)) return false;
    const Scheduler& s = jobs_.schedulers[p];
    const std::uint64_t run = s.lead->key.leader.run;
    if (s.options.standby) jobs_.violate("E3: one that stands by begins a run");
    // Only if it saw the run: one that starts after the end can not know. Its agent ends it.
    if (jobs_.runs[run].ended && s.saw_job && s.stands_by == run) {
      jobs_.violate("E3: a run is begun anew that has ended");
    }
    for (const auto& other : jobs_.schedulers) {
      const bool stands_by = &other != &s && other.alive && jobs_.etcd.journal &&
                             *jobs_.etcd.journal != run && other.stands_by == *jobs_.etcd.journal &&
                             !other.lead;
      if (stands_by && other.disturbed + kExcuse < s.led_at) {
        jobs_.violate("E2: a run is begun while one stands by for that of the journal");
      }
    }
    jobs_.tell(cat(jobs_.name(p), " begins run ", run));
    // The former journal is replaced: schedulers that have seen it may take its run for ended.
    if (jobs_.etcd.journal && jobs_.runs[*jobs_.etcd.journal].token != jobs_.runs[run].token) {
      jobs_.runs[*jobs_.etcd.journal].ended = jobs_.now();
    }
    jobs_.etcd.journal = run;
    return true;
  };
  client_.request<bool>(p, true, store, [this, p](std::optional<bool> done) {
    if (!done.value_or(false)) return die(p, true, "it can not begin");
    publish(p);
  });
}

void ElectionSchedulers::publish(Index p) {
  const auto put = [this, p] {
    const bool mine = client_.holds(p);
    if (mine) jobs_.etcd.say_where();
    return mine;
  };
  client_.request<bool>(p, true, put, [this, p](std::optional<bool> done) {
    if (!done.value_or(false)) return die(p, true, "it can not say where it is");
    jobs_.schedulers[p].serves = true;
    jobs_.for_process(p, 700ms, [this, p] { serve(p); });  // A job takes at least this long.
  });
}

void ElectionSchedulers::serve(Index p) {
  const auto store = [this, p] {
    if (!client_.holds(p)) return false;
    if (!jobs_.ending) return true;
    const std::uint64_t run = jobs_.schedulers[p].lead->key.leader.run;
    if (jobs_.runs[run].ended) return true;  // Done before, but the answer was lost.
    if (jobs_.etcd.journal != run) {
      jobs_.violate("E1: the journal is of another run than its scheduler");
    }
    jobs_.tell(cat("run ", run, " ends"));
    jobs_.etcd.journal.reset();
    jobs_.runs[run].ended = jobs_.now();
    // The agents of the run's hosts learn of the end.
    for (auto& host : jobs_.hosts) host.is_over = host.is_over || host.part_of == run;
    return true;
  };
  client_.request<bool>(p, true, store, [this, p](std::optional<bool> done) {
    if (done && !*done) return die(p, true, "it can not store");
    if (done && jobs_.runs[jobs_.schedulers[p].lead->key.leader.run].ended) {
      drop_lease(p);
      return end(p, "its job has ended");
    }
    jobs_.for_process(p, 700ms, [this, p] { serve(p); });
  });
}

const ElectionSchedulers::Scheduler* ElectionSchedulers::leader() const {
  if (!jobs_.etcd.key()) return nullptr;
  const Scheduler& s = jobs_.schedulers[jobs_.etcd.owner()];
  return s.alive && s.serves ? &s : nullptr;
}

}  // namespace holdfast::sim
