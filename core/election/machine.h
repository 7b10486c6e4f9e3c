// Which of a job's schedulers serves, where etcd decides it: when one takes the job's key, with
// whose run it goes on, when the job has ended, when it gives up.
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

// What a scheduler says of itself in etcd.
struct Leader {
  std::uint64_t run = 0;
  std::string host;  // Where it listens; empty: it does not yet.
  std::uint16_t port = 0;
  std::string host_name;
  std::string agent;          // HOLDFAST_AGENT.
  std::uint64_t attempt = 0;  // HOLDFAST_ATTEMPT.
  std::string token_mark;     // Tells jobs of one name apart (runtime/jobs/membership.h).
  bool operator==(const Leader&) const = default;
};

struct Options {
  Leader self;                 // Its run: HOLDFAST_RUN; 0: that of the journal, or `new_run`.
  std::uint64_t new_run = 0;   // Drawn for it.
  bool standby = false;        // It is not the job's first one.
  bool by_hand_again = false;  // As of controller::Candidate.
  Duration lease{};
  Duration patience{};  // For etcd. That of a run's first one is shorter.
};

struct Key {  // Of the scheduler that has it.
  Leader leader;
  std::int64_t created = 0;  // The revision that made it.
  std::int64_t lease = 0;
  bool operator==(const Key&) const = default;
};

// What may happen.
struct TimePassed {};
struct Looked {
  Instant asked{};
  std::optional<Key> key;
  bool has_journal = false;
  std::optional<std::uint64_t> run;  // That the journal is of. Nothing: it is damaged.
};
struct Asked {  // Whether the scheduler with this key lives.
  std::int64_t created = 0;
  bool answers = false;
};
struct Removed {
  bool done = false;
};
struct Tried {
  std::int64_t lease = 0;
  std::optional<Key> key;  // That was there then.
  Error why;               // That which put the key has failed with, or nothing.
};
struct Failed {  // Etcd has not answered, or refuses.
  Error why;
};
using Event = std::variant<TimePassed, Looked, Asked, Removed, Tried, Failed>;
inline constexpr const char* kEventNames[] = {"time passed", "looked", "asked",
                                              "removed",     "tried",  "failed"};
static_assert(std::size(kEventNames) == std::variant_size_v<Event>);

// What must be done. The first three ask etcd; it does nothing else until that has an answer.
struct Look {};  // At key and journal. Answered by Looked or Failed.
struct Remove {  // The key, if it is still this one. Answered by Removed.
  std::int64_t created = 0;
};
struct Try {  // Takes a lease, puts its key if there is none, and looks whose is there, whatever
              // was
  Leader leader;  // answered. Answered by Tried or Failed; the lease is given up unless it leads.
};
struct Ask {  // Whether it lives. Answered by Asked, at any time.
  Key key;
};
struct StandBy {  // Say so, once.
  Leader leader;
};
struct Found {  // The job's scheduler: for the processes of this host.
  Key key;
  bool is_news = false;  // For the user, too.
};
struct SayWhy {  // It waits.
  Error why;
};
struct Lead {
  Key key;
  bool takes_over = false;          // It goes on with a run that others have served.
  std::optional<Duration> without;  // Since it last saw its predecessor's key; nothing: never.
  std::string predecessor;          // Its host.
};
struct EndWithJob {};  // Which has ended.
struct Refuse {        // Another job has this one's name.
  std::string host;    // Its scheduler's.
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
// {state × event}; see core/table.h.
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

  // When TimePassed is to come. Nothing: it has asked etcd, or is done.
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
  std::size_t event_ = 0;  // That is being handled.
  Instant now_{};
  Instant next_look_;
  Instant asked_{};          // Etcd, when it had an answer last,
  Instant answered_;         // and when that came.
  bool cannot_put_ = false;  // Its key, when it tried last.
  std::optional<Key> key_;   // That is there.
  // In each look since then: it was there, or none was.
  std::optional<Instant> since_, free_since_;
  std::optional<Instant> last_seen_;  // Any key.
  bool has_journal_ = false;
  std::optional<std::uint64_t> journal_run_;
  bool was_served_ = false;      // Its job: it had a scheduler and a journal.
  std::uint64_t lived_run_ = 0;  // It is certain that its scheduler has lived meanwhile.
  std::string predecessor_;
  bool asking_ = false;
  std::string said_;  // Why it waits.
  Actions actions_;
};

}  // namespace holdfast::election
