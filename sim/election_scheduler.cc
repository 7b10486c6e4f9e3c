// The schedulers of the simulated election: they do what the shell of a scheduler would do: ask
// etcd, lead, serve.
#include <algorithm>
#include <memory>

#include "sim/election_world.h"

namespace holdfast::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kAskLimit = 1s;
constexpr Duration kExcuse = 6s;  // How long after a disturbance a process may miss something.

}  // namespace

bool Election::holds(Index p) {
  const bool holds = etcd_.has(schedulers_[p].lead->key.created);
  if (holds && etcd_.owner() != p) violate("E1: two schedulers change the journal with one key");
  return holds;
}

template <class Answer>
void Election::request(Index p, bool changes, std::function<Answer()> what,
                       std::function<void(std::optional<Answer>)> heard) {
  enum Fate : std::uint32_t { kQuick, kAnswerLost, kLate, kLost, kSlow };
  std::uint32_t fate = kQuick;
  const bool may_be_odd = odd_left_ > 0 && !quiet_ && (changes || !small_);
  if (may_be_odd) fate = choices_.pick(small_ ? 3 : 5, odd_rarity_);
  if (fate != kQuick) {
    --odd_left_;
    schedulers_[p].disturbed = now_;
    tell(cat(name(p), "'s request goes wrong: ", fate));
  }
  const bool reached = reaches_etcd(p);
  const bool answered = reached && (fate == kQuick || fate == kSlow);
  const Duration there = fate == kLate ? 1500ms : fate == kSlow ? 300ms : 1ms;
  const Duration back = !answered ? kAskLimit : fate == kSlow ? 600ms : 2ms;
  const auto answer = std::make_shared<std::optional<Answer>>();
  if (reached && fate != kLost) {
    at(now_ + there, [this, p, what, answer] {
      etcd_.settle(now_);
      if (reaches_etcd(p)) *answer = what();
    });
  }
  for_process(p, back, [this, p, back, answered, heard, answer] {
    if (answered && *answer) return heard(*answer);
    for_process(p, kAskLimit - back, [heard] { heard(std::nullopt); });
  });
}

// ---- A process ----

void Election::step(Index p, const election::Event& event) {
  Scheduler& s = schedulers_[p];
  if (!s.alive || s.lead) return;
  fold(static_cast<std::uint64_t>(now_.count()) << 8 | p << 4 | event.index());
  ++steps_;
  for (const auto& action : s.machine->step(now_, event)) {
    std::visit([&](const auto& a) { carry_out(p, a); }, action);
  }
  const auto deadline = s.machine->deadline();
  if (!deadline || s.timer == deadline) return;
  s.timer = deadline;
  for_process(p, *deadline - now_, [this, p] { step(p, election::TimePassed{}); });
}

void Election::carry_out(Index p, const election::Look&) {
  request<election::Looked>(
      p, false, [this, asked = now_] { return etcd_.look(asked); },
      [this, p](const std::optional<election::Looked>& seen) {
        Scheduler& s = schedulers_[p];
        const bool is_served = seen && seen->key && seen->run == seen->key->leader.run;
        if (is_served) s.saw_job |= seen->key->leader.token_mark == s.options.self.token_mark;
        if (seen) return step(p, *seen);
        step(p, election::Failed{{Blame::kWorld, "no answer"}});
      });
}

void Election::carry_out(Index p, const election::Remove& remove) {
  request<bool>(
      p, true,
      [this, created = remove.created] {
        const bool removed = etcd_.remove(created);
        if (removed && schedulers_[etcd_.owner()].alive) {
          violate("E8: the key of one that lives is removed");
        }
        return removed;
      },
      [this, p](std::optional<bool> done) { step(p, election::Removed{done.value_or(false)}); });
}

void Election::carry_out(Index p, const election::Try& what) {
  hosts_[schedulers_[p].host].tried.insert(what.leader.run);
  request<std::int64_t>(
      p, true, [this] { return etcd_.grant(now_); },
      [this, p, asked = now_, leader = what.leader](std::optional<std::int64_t> lease) {
        if (!lease) return step(p, election::Failed{{Blame::kWorld, "no answer"}});
        schedulers_[p].lease = *lease;
        schedulers_[p].lease_until = asked + kTtl;
        for_process(p, kTtl / 4, [this, p] { keep_alive(p); });
        put(p, leader, *lease);
      });
}

void Election::put(Index p, const election::Leader& leader, std::int64_t lease) {
  const auto put = [this, p, leader, lease] { return etcd_.put(leader, lease, p); };
  request<bool>(p, true, put, [this, p, lease](std::optional<bool> done) {
    request<election::Looked>(
        p, false, [this] { return etcd_.look(now_); },
        [this, p, lease, done](const std::optional<election::Looked>& there) {
          const Error why{Blame::kWorld, done ? "" : "no answer"};
          if (there) step(p, election::Tried{lease, there->key, why});
          if (!there) step(p, election::Failed{{Blame::kWorld, "no answer"}});
          if (!schedulers_[p].lead) drop_lease(p);
        });
  });
}

void Election::drop_lease(Index p) {
  const auto lease = std::exchange(schedulers_[p].lease, 0);
  if (lease != 0 && reaches_etcd(p)) etcd_.revoke(lease, now_);
}

// Plays the thread that keeps the scheduler's lease alive.
void Election::keep_alive(Index p) {
  Scheduler& s = schedulers_[p];
  if (s.lease == 0) return;
  if (reaches_etcd(p)) {
    if (!etcd_.keep_alive(s.lease, now_)) return die(p, true, "its lease has ended");
    s.lease_until = now_ + kTtl;
  } else if (now_ >= s.lease_until) {
    return die(p, true, "its lease may have ended");
  }
  for_process(p, kTtl / 4, [this, p] { keep_alive(p); });
}

void Election::carry_out(Index p, const election::Ask& ask) {
  const Index other = etcd_.owner();  // Any scheduler may be there: it answers for its key only.
  const auto is_reached = [this, p, other, created = ask.key.created] {
    const Scheduler& s = schedulers_[other];
    const auto open = [&](Index host) { return hosts_[host].cut_until <= now_; };
    return s.alive && s.lead && s.lead->key.created == created && s.stopped_until <= now_ &&
           s.options.self.token_mark == schedulers_[p].options.self.token_mark && open(s.host) &&
           open(schedulers_[p].host);
  };
  const bool answers = is_reached();
  for_process(p, answers ? 5ms : kAskLimit, [this, p, answers, created = ask.key.created] {
    step(p, election::Asked{created, answers});
  });
}

void Election::stand_by(Index p, std::uint64_t run) {
  Scheduler& s = schedulers_[p];
  s.stands_by = hosts_[s.host].part_of = run;
  tell(cat(name(p), " stands by for run ", run));
}

void Election::carry_out(Index p, const election::Found& found) {
  if (found.is_news) stand_by(p, found.key.leader.run);
}

void Election::carry_out(Index p, const election::EndWithJob&) {
  const bool right = std::any_of(runs_.begin(), runs_.end(), [&](const auto& run) {
    return run.second.token == hosts_[schedulers_[p].host].token && run.second.ended &&
           *run.second.ended >= schedulers_[p].started;
  });
  if (!right) violate("E6: a scheduler ends with a job that has not ended");
  end(p, "the job has ended");
}

void Election::carry_out(Index p, const election::Refuse&) {
  const Scheduler& own = schedulers_[p];
  const bool right = std::any_of(schedulers_.begin(), schedulers_.end(), [&](const Scheduler& s) {
    const bool lived = s.alive || (s.lead && runs_[s.lead->key.leader.run].lived >= own.started);
    return lived && hosts_[s.host].token != hosts_[own.host].token;
  });
  if (!right) violate("E9: its own job is refused");
  end(p, "another job has its name");
}

void Election::carry_out(Index p, const election::GiveUp&) {
  const Instant excused =
      std::max(schedulers_[p].disturbed, etcd_.away_until()) + kPatience + kAskLimit;
  if (now_ > excused) violate("E5: a scheduler gives up though etcd answers");
  end(p, "it gives up");
}

// The scheduler exits by itself, and its agent starts no other.
void Election::end(Index p, const std::string& why) {
  die(p, false, why);
  hosts_[schedulers_[p].host].is_over = true;
}

void Election::die(Index p, bool restarts, const std::string& why) {
  Scheduler& s = schedulers_[p];
  if (!s.alive) return;
  tell(cat(name(p), " ends: ", why));
  s.alive = false;
  s.lease = 0;  // Nobody keeps the lease alive, so it runs out.
  if (s.lead) runs_[s.lead->key.leader.run].lived = now_;
  if (!restarts) return;
  const Duration after = quiet_ || choices_.pick(2, 3) == 0 ? 100ms : 4s;
  at(now_ + after, [this, host = s.host] { start_scheduler(host); });
}

// ---- A scheduler that leads ----

void Election::carry_out(Index p, const election::Lead& lead) {
  Scheduler& s = schedulers_[p];
  Host& host = hosts_[s.host];
  const std::uint64_t run = lead.key.leader.run;
  tell(cat(name(p), lead.takes_over ? " takes over run " : " leads run ", run));
  s.lead = lead;
  s.led_at = now_;
  host.part_of = run;
  if (runs_[run].token.empty()) runs_[run].token = host.token;
  if (lead.takes_over) {
    const bool is_its_own = run == host.run || host.by_hand_again || host.tried.contains(run);
    if (runs_[run].token != host.token) violate("E9: a job of another token is taken over");
    if (!is_its_own && !lived_since(run, s.started)) {
      violate("E7: a run is taken over whose scheduler has not lived meanwhile");
    }
  }
  const bool is_slow = !quiet_ && !small_ && choices_.pick(4, 4) != 0;
  for_process(p, is_slow ? 2500ms : 5ms, [this, p] { open_journal(p); });
}

bool Election::lived_since(std::uint64_t run, Instant since) const {
  return runs_.at(run).lived >= since ||
         std::any_of(schedulers_.begin(), schedulers_.end(), [&](const Scheduler& other) {
           return other.alive && other.lead && other.lead->key.leader.run == run;
         });
}

controller::Candidate Election::candidate(Index p) const {
  const Scheduler& s = schedulers_[p];
  const std::uint64_t run = s.lead->key.leader.run;
  const std::uint64_t attempt = s.options.self.attempt;
  return {.attempt = s.lead->takes_over ? std::max<std::uint64_t>(attempt, 2) : attempt,
          .by_hand_again = s.options.by_hand_again,
          .run = run,
          .world_size = 1,
          .of_others = s.lead->takes_over && run != s.options.self.run};
}

void Election::open_journal(Index p) {
  using Found = std::optional<std::uint64_t>;
  request<Found>(
      p, false, [this] { return etcd_.journal; },
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

void Election::begin(Index p) {
  const auto store = [this, p] {
    if (!holds(p)) return false;
    const Scheduler& s = schedulers_[p];
    const std::uint64_t run = s.lead->key.leader.run;
    if (s.options.standby) violate("E3: one that stands by begins a run");
    // Only if it saw the run: one that starts after the end can not know. Its agent ends it.
    if (runs_[run].ended && s.saw_job && s.stands_by == run)
      violate("E3: a run is begun anew that has ended");
    for (const auto& other : schedulers_) {
      const bool stands_by = &other != &s && other.alive && etcd_.journal &&
                             *etcd_.journal != run && other.stands_by == *etcd_.journal &&
                             !other.lead;
      if (stands_by && other.disturbed + kExcuse < s.led_at) {
        violate("E2: a run is begun while one stands by for that of the journal");
      }
    }
    tell(cat(name(p), " begins run ", run));
    // The former journal is replaced: schedulers that have seen it may take its run for ended.
    if (etcd_.journal && runs_[*etcd_.journal].token != runs_[run].token) {
      runs_[*etcd_.journal].ended = now_;
    }
    etcd_.journal = run;
    return true;
  };
  request<bool>(p, true, store, [this, p](std::optional<bool> done) {
    if (!done.value_or(false)) return die(p, true, "it can not begin");
    publish(p);
  });
}

void Election::publish(Index p) {
  const auto put = [this, p] {
    const bool mine = holds(p);
    if (mine) etcd_.say_where();
    return mine;
  };
  request<bool>(p, true, put, [this, p](std::optional<bool> done) {
    if (!done.value_or(false)) return die(p, true, "it can not say where it is");
    schedulers_[p].serves = true;
    for_process(p, 700ms, [this, p] { serve(p); });  // A job takes at least this long.
  });
}

void Election::serve(Index p) {
  const auto store = [this, p] {
    if (!holds(p)) return false;
    if (!ending_) return true;
    const std::uint64_t run = schedulers_[p].lead->key.leader.run;
    if (runs_[run].ended) return true;  // Done before, but the answer was lost.
    if (etcd_.journal != run) violate("E1: the journal is of another run than its scheduler");
    tell(cat("run ", run, " ends"));
    etcd_.journal.reset();
    runs_[run].ended = now_;
    // The agents of the run's hosts learn of the end.
    for (auto& host : hosts_) host.is_over = host.is_over || host.part_of == run;
    return true;
  };
  request<bool>(p, true, store, [this, p](std::optional<bool> done) {
    if (done && !*done) return die(p, true, "it can not store");
    if (done && runs_[schedulers_[p].lead->key.leader.run].ended) {
      drop_lease(p);
      return end(p, "its job has ended");
    }
    for_process(p, 700ms, [this, p] { serve(p); });
  });
}

}  // namespace holdfast::sim
