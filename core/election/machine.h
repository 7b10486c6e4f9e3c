// Whether this scheduler serves, for a job that runs several schedulers and uses etcd: when it
// takes the job's key, which run it goes on with, when the job has ended, and when it gives up.
//
// Pure: no clock, no I/O. Why it is right: docs/protocol/recovery.md (P30, P55) and
// docs/decisions/0019-etcd.md.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "core/table.h"

namespace holdfast::election {

// What a scheduler writes of itself into the job's key.
struct Leader {
  std::uint64_t run = 0;
  std::string host;  // Where it listens; empty: it does not listen yet.
  std::uint16_t port = 0;
  std::string host_name;
  std::string agent;          // From HOLDFAST_AGENT.
  std::uint64_t attempt = 0;  // From HOLDFAST_ATTEMPT.
  std::string token_mark;     // Tells jobs of one name apart (runtime/jobs/membership.h).
  bool operator==(const Leader&) const = default;
};

struct Options {
  Leader self;                 // self.run is HOLDFAST_RUN; 0: see own_run().
  std::uint64_t new_run = 0;   // 64 random bits, for a run that it begins.
  bool standby = false;        // Another scheduler of the job is the first.
  bool by_hand_again = false;  // As in controller::Candidate.
  Duration lease{};
  Duration patience{};  // How long etcd may be away. A run's first scheduler waits less.
};

struct Key {  // The job's key in etcd: who has it, serves.
  Leader leader;
  std::int64_t created = 0;  // The etcd revision that created the key.
  std::int64_t lease = 0;
  bool operator==(const Key&) const = default;
};

// What may happen.
struct TimePassed {};
struct Looked {
  Instant asked{};
  std::optional<Key> key;
  bool has_journal = false;
  std::optional<std::uint64_t> run;  // The journal's run. nullopt: it is damaged, or there is none.
};
struct Asked {  // Answers Ask: whether the scheduler with this key lives.
  std::int64_t created = 0;
  bool answers = false;
};
struct Removed {
  bool done = false;
};
struct Tried {
  std::int64_t lease = 0;
  std::optional<Key> key;  // The key that was there afterwards.
  Error why;               // Why the key could not be put; empty: no error.
};
struct Failed {  // etcd has not answered, or has refused.
  Error why;
};
using Event = std::variant<TimePassed, Looked, Asked, Removed, Tried, Failed>;
inline constexpr const char* kEventNames[] = {"time passed", "looked", "asked",
                                              "removed",     "tried",  "failed"};
static_assert(std::size(kEventNames) == std::variant_size_v<Event>);

// What must be done. Look, Remove and Try ask etcd; the machine does nothing else until the answer
// comes.
struct Look {};  // Read the key and the journal's head. Answered by Looked or Failed.
struct Remove {  // Delete the key, if it is still this one. Answered by Removed.
  std::int64_t created = 0;
};
// Take a lease, put a key with it if there is none, and read the key that is there then, whatever
// the answer to the put. Answered by Tried or Failed. Give up the lease unless this scheduler
// leads.
struct Try {
  Leader leader;
};
struct Ask {  // Ask the key's scheduler whether it lives. Answered by Asked, at any time.
  Key key;
};
struct StandBy {  // Tell the user once that this scheduler stands by.
  Leader leader;
};
struct Found {  // Tell the processes of this host where the job's scheduler is.
  Key key;
  bool is_news = false;  // Tell the user, too.
};
struct SayWhy {  // Tell the user why it waits.
  Error why;
};
struct Lead {
  Key key;
  bool takes_over = false;          // It goes on with a run that others have served.
  std::optional<Duration> without;  // Time since it last saw a key; nullopt: it never did.
  std::string predecessor;          // The host name in that key.
};
struct EndWithJob {};  // The job has ended: end, too.
struct Refuse {        // Another job has the same name.
  std::string host;    // The host of that job's scheduler.
};
struct GiveUp {
  Error why;
};
using Action =
    std::variant<Look, Remove, Try, Ask, StandBy, Found, SayWhy, Lead, EndWithJob, Refuse, GiveUp>;
using Actions = std::vector<Action>;

enum class State : std::uint8_t { kWaiting, kLooking, kRemoving, kTrying, kLeading, kOver };
inline constexpr std::size_t kStates = 6;
[[nodiscard]] const char* name(State state);
// The table {state × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<State>> transitions();

class Machine {
 public:
  Machine(Options options, Instant now)
      : options_(std::move(options)), next_look_(now), answered_(now) {}

  [[nodiscard]] Actions step(Instant now, const Event& event) {
    now_ = now;
    event_ = event.index();
    std::visit([&](const auto& e) { on(e); }, event);
    return std::exchange(actions_, {});
  }

  // When TimePassed must come. nullopt: it waits for etcd, leads, or is over.
  [[nodiscard]] std::optional<Instant> deadline() const {
    return state_ == State::kWaiting ? std::optional(next_look_) : std::nullopt;
  }
  [[nodiscard]] State state() const { return state_; }

 private:
  void on(const TimePassed&);
  void on(const Looked& e);
  void on(const Asked& e);
  void on(const Removed& e);
  void on(const Tried& e);
  void on(const Failed& e) { fail(e.why); }

  void act(State next, Action action);
  void wait();
  void fail(const Error& why);
  void see(const Key& key, Instant asked);
  void know_that_it_lived(const Leader& leader);
  void attempt();
  [[nodiscard]] bool is_ours(const Leader& leader) const;
  [[nodiscard]] bool is_dead_predecessor() const;
  [[nodiscard]] bool has_ended() const;
  [[nodiscard]] bool may_lead();
  [[nodiscard]] std::uint64_t own_run() const;

  Options options_;
  State state_ = State::kWaiting;
  std::size_t event_ = 0;  // Index of the event that is being handled.
  Instant now_{};
  Instant next_look_;
  Instant asked_{};          // When the last look that was answered was asked,
  Instant answered_;         // and when etcd last answered in full.
  bool cannot_put_ = false;  // Its last attempt to put the key failed.
  std::optional<Key> key_;   // The key as last seen.
  // Since when every look has seen this key (since_), or no key (free_since_).
  std::optional<Instant> since_, free_since_;
  std::optional<Instant> last_seen_;  // When it last saw any key.
  bool has_journal_ = false;
  std::optional<std::uint64_t> journal_run_;
  // A scheduler of this job has had the key and the journal.
  bool was_served_ = false;
  std::uint64_t lived_run_ = 0;  // A run whose scheduler has certainly lived; 0: none.
  std::string predecessor_;
  bool asking_ = false;
  std::string said_;  // Why it waits, as last told to the user.
  Actions actions_;
};

}  // namespace holdfast::election
