// The simulated election: the schedulers of a job on several hosts, and those of other jobs with
// the same name; an etcd whose answers are late or lost and whose leases end late; and faults. It
// drives the machine of core/election as runtime/scheduler does, and decides nothing itself.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/text.h"
#include "core/controller/takeover.h"
#include "core/election/machine.h"
#include "sim/choices.h"
#include "sim/etcd.h"
#include "sim/world.h"

namespace holdfast::sim {

class Election {
 public:
  Election(bool small, Choices& choices, std::vector<std::string>* log)
      : small_(small), choices_(choices), log_(log) {}
  Outcome run();

 private:
  using Index = std::size_t;
  static constexpr Duration kPatience = std::chrono::seconds(12);  // For answers of etcd.

  struct Host {  // A host with its agent.
    std::string name;
    std::string agent;
    std::string token;
    std::uint64_t run = 0;
    std::uint64_t attempt = 0;
    bool standby = false;
    bool by_hand_again = false;
    bool is_over = false;           // It is lost, or its agent starts no scheduler any more.
    Instant cut_until{};            // Until then it reaches neither etcd nor other hosts.
    std::uint64_t part_of = 0;      // The run that its newest scheduler knew of.
    std::set<std::uint64_t> tried;  // The runs that its schedulers have tried to lead.
  };

  struct Scheduler {
    Index host = 0;
    election::Options options;
    std::optional<election::Machine> machine;
    bool alive = true;
    Instant started{};
    Instant stopped_until{};
    Instant disturbed = -std::chrono::hours(1);
    std::optional<Instant> timer;
    std::uint64_t stands_by = 0;  // The run for which it stands by; 0: it does not.
    bool saw_job = false;         // It has seen a key and a journal.
    std::optional<election::Lead> lead;
    bool serves = false;
    Instant led_at{};
    std::int64_t lease = 0;  // The lease that it keeps alive,
    Instant lease_until{};   // which lasts at least until then.
  };

  struct Run {
    std::string token;
    Instant lived = -std::chrono::hours(1);  // When a scheduler of this run last was alive.
    std::optional<Instant> ended;            // When the run ended well.
  };

  // Time, and scheduled events.
  void at(Instant when, std::function<void()> what) {
    due_.emplace(std::pair(when, ++order_), std::move(what));
  }
  void for_process(Index p, Duration after, const std::function<void()>& what) {
    at(now_ + after, [this, p, what] {
      const Scheduler& s = schedulers_[p];
      if (!s.alive) return;
      if (s.stopped_until > now_) return for_process(p, s.stopped_until - now_, what);
      what();
    });
  }
  void pass_time_until(Instant end);
  void tell(const std::string& text) {
    if (log_) log_->push_back(cat(now_.count() / 1'000'000, " ms: ", text));
  }
  void violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }
  void fold(std::uint64_t number) { hash_ = mix(hash_ ^ number) + 0x9e3779b97f4a7c15U; }
  Duration pick_time(const std::vector<Duration>& times) {
    return times[choices_.pick(static_cast<std::uint32_t>(times.size()))];
  }

  // Setup, faults, and the checks after the last fault.
  void set_up();
  void leave_remains(const std::string& token);
  void start_job(const std::string& token, Index hosts, Duration after);
  void start_anew(std::uint64_t run, bool by_hand);
  Index add_host(const std::string& token, std::uint64_t run, bool standby);
  void start_scheduler(Index host);
  void maybe_fault();
  void strike(std::uint32_t fault);
  void check_settled();
  [[nodiscard]] const Scheduler* leader() const;

  // A process.
  [[nodiscard]] std::string name(Index p) const {
    const Scheduler& s = schedulers_[p];
    return cat(s.options.self.host_name, "#", p);
  }
  void step(Index p, const election::Event& event);
  void die(Index p, bool restarts, const std::string& why);
  void end(Index p, const std::string& why);
  void keep_alive(Index p);
  void carry_out(Index p, const election::Look&);
  void carry_out(Index p, const election::Remove& remove);
  void carry_out(Index p, const election::Try& what);
  void carry_out(Index p, const election::Ask& ask);
  void carry_out(Index p, const election::StandBy& others) { stand_by(p, others.leader.run); }
  void stand_by(Index p, std::uint64_t run);
  void carry_out(Index p, const election::Found& found);
  void carry_out(Index, const election::SayWhy&) {}
  void carry_out(Index p, const election::Lead& lead);
  void carry_out(Index p, const election::EndWithJob&);
  void carry_out(Index p, const election::Refuse&);
  void carry_out(Index p, const election::GiveUp&);
  void put(Index p, const election::Leader& leader, std::int64_t lease);
  void drop_lease(Index p);

  // The work of a scheduler that leads.
  void open_journal(Index p);
  void begin(Index p);
  void publish(Index p);
  void serve(Index p);
  [[nodiscard]] controller::Candidate candidate(Index p) const;
  [[nodiscard]] bool lived_since(std::uint64_t run, Instant since) const;

  // etcd.
  [[nodiscard]] bool reaches_etcd(Index p) const {
    return now_ >= etcd_.away_until() && now_ >= hosts_[schedulers_[p].host].cut_until;
  }
  // Whether the scheduler still has its key in etcd; checks also that the key is its own. For
  // requests that change something only on this condition.
  bool holds(Index p);
  // Makes etcd do `what`, and then calls `heard` with the answer, or with nothing if the answer is
  // lost. `changes`: `what` changes something.
  template <class Answer>
  void request(Index p, bool changes, std::function<Answer()> what,
               std::function<void(std::optional<Answer>)> heard);

  const bool small_;
  Choices& choices_;
  std::vector<std::string>* log_;
  Instant now_{};
  std::uint64_t order_ = 0;
  std::multimap<std::pair<Instant, std::uint64_t>, std::function<void()>> due_;
  std::string violation_;
  std::uint64_t hash_ = 0;
  std::uint32_t steps_ = 0;
  std::uint32_t faults_left_ = 0;
  std::uint32_t struck_ = 0;
  std::uint32_t rarity_ = 1;    // The rarity of faults, as in Choices::pick().
  std::uint32_t odd_left_ = 0;  // How many more requests may go wrong.
  std::uint32_t odd_rarity_ = 1;
  bool quiet_ = false;
  bool ending_ = false;  // The jobs have done their work: the one that is served may end.

  std::deque<Host> hosts_;
  std::deque<Scheduler> schedulers_;  // The dead too.
  std::map<std::uint64_t, Run> runs_;
  std::uint64_t next_run_ = 1;
  Etcd etcd_;
};

// In the world "election" everything is drawn. "candidates" is for exhaustive runs: two schedulers,
// one fault, and one request to etcd that changes something and goes wrong.
[[nodiscard]] bool is_election(const std::string& world);

// Requires is_election(world).
[[nodiscard]] Outcome simulate_election(const std::string& world, Choices& choices,
                                        std::vector<std::string>* log = nullptr);

}  // namespace holdfast::sim
