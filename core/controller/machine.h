// The scheduler's decisions: who has which rank, and what all do after a fault.
//
// Pure: no clock, no I/O, no threads, no randomness, no unordered containers. The same state and
// the same event give the same actions. What it says to others it says only once the record behind
// it is durable: every action after a Store is held back until that Store is answered by Stored.
// Why it is right: docs/protocol/recovery.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/planner/planner.h"
#include "wire/messages.h"
#include "wire/record.h"

namespace holdfast::controller {

using Link = std::uint64_t;  // A connection; never used again once closed. 0: none.

struct Options {
  std::string job;
  std::uint64_t run_id = 0;  // For a new record: 64 random bits.
  std::int32_t world_size = 0;
  Duration topology_timeout{};     // Until all processes have come.
  Duration lease{};                // Silence after which a process counts as lost.
  Duration replacement_timeout{};  // How long a lost rank is waited for.
  bool one_host = false;           // Arenas and collectives are memory of one host: no second one.
};

// What may happen.
struct Started {};
struct Received {
  Link link = 0;
  wire::Message message;
};
struct Closed {
  Link link = 0;
};
struct ProvenDead {  // The shell has proof that this process of the scheduler's own host is gone.
  std::string node_id;
  Incarnation incarnation = 0;
};
struct Stored {};  // The oldest unanswered Store is durable.
struct TimePassed {};
using Event = std::variant<Started, Received, Closed, ProvenDead, Stored, TimePassed>;

// The phases of a recovery, as named in traces, reports and docs.
enum class Phase : std::uint8_t { kAssembling, kStopping, kRepairing, kRunning, kEnded };

// What must be done, in this order.
struct Store {
  wire::Record record;
};
struct Send {
  Link link = 0;
  wire::Message message;
};
struct Close {
  Link link = 0;
};
struct Note {  // For traces and reports; decides nothing.
  enum class Kind : std::uint8_t { kFault, kStop, kPlan, kReform, kResume, kRecovered, kHow };
  Kind kind = Kind::kFault;
  Generation generation = 0;
  Version version = 0;
  Rank rank = kNoRank;  // kFault: whose. kHow: of whose death it is known by now how it came.
  std::string text;
  std::uint64_t detected_ns = 0;  // kFault: when its agent knew; 0: not known.
};
struct End {
  bool success = false;
  std::string reason;
};
using Action = std::variant<Store, Send, Close, Note, End>;
using Actions = std::vector<Action>;

// What is known of one place of the job beside its lease. For status.
struct Member {
  Rank rank = kNoRank;  // kNoRank: the ranks are not given yet.
  Link link = 0;
  std::string host;
  std::string memory;
  std::int64_t pid = 0;
  Incarnation incarnation = 0;
  std::uint64_t attempt = 0;
  bool dead = false;              // Proven, for this incarnation.
  bool lost = false;              // Silent for longer than its lease.
  bool left = false;              // Ended with exit code 0, or finished and gone.
  bool joined = false;            // This incarnation has reported at least once.
  std::string how;                // How the last incarnation ended.
  std::int64_t dead_pid = 0;      // Of that one.
  std::uint64_t detected_ns = 0;  // When its agent knew of that end.
  Instant heard{};
  std::optional<Instant> called{};  // When its silence was first noticed: it has its last call.
  Version version = 0;              // By its own Progress.
  double loss = 0;
};

class Machine {
 public:
  Machine(Options options, std::optional<wire::Record> stored);

  [[nodiscard]] Actions step(Instant now, const Event& event);

  // When TimePassed is wanted at the latest.
  [[nodiscard]] std::optional<Instant> deadline() const;

  [[nodiscard]] const wire::Record& record() const { return record_; }
  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] const std::map<std::string, Member>& members() const { return members_; }
  [[nodiscard]] const std::string& cause() const { return cause_; }

 private:
  void on(const Started&);
  void on(const Received& e);
  void on(const Closed& e);
  void on(const ProvenDead& e);
  void on(const Stored&);
  void on(const TimePassed&);

  void receive(Link link, const wire::Register& m);
  void receive(Link link, const wire::AgentState& m);
  void receive(Link link, const wire::Report& m);
  void receive(Link link, const wire::Repaired& m);
  void receive(Link link, const wire::Progress& m);
  void receive(Link link, const wire::Finished& m);
  void receive(Link link, const wire::Failed& m);
  template <class Other>
  void receive(Link, const Other&) {
  }  // Heartbeats are heard in on(Received); the rest is nonsense.

  // Membership (membership.cc)
  void admit_early(Link link, const wire::Register& m);
  void admit(Link link, Rank rank, const wire::Register& m);
  void assemble();
  void take_over(Rank rank, Link link, const wire::Register& m);
  void welcome(Rank rank);
  void heed(const wire::Slot& slot);
  void tell_how(Member& member, const wire::Slot& slot);
  void heed_agents(const std::string& node_id);
  void died(const std::string& node_id, const std::string& how, bool in_good_order,
            std::uint64_t detected_ns);
  void answer_knock(const std::string& node_id);
  void refuse(Link link, std::string reason);
  [[nodiscard]] std::string elsewhere(const wire::Register& m) const;
  void check_leases();
  void hear(Member& member);
  [[nodiscard]] Instant silent_at(const Member& member) const;
  [[nodiscard]] bool lease_runs(const Member& member) const;
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] bool waits_for_replacement() const;
  [[nodiscard]] Rank rank_of(const std::string& node_id) const;
  [[nodiscard]] Rank rank_at(Link link) const;
  [[nodiscard]] Member* member_at(Rank rank);
  void attach(Member& member, Link link, const wire::Register& m);

  // Recovery (recovery.cc)
  void begin(std::string cause);
  void rank_lost(Rank rank, const std::string& cause, std::uint64_t detected_ns);
  void maybe_plan();
  void next_round();
  void resume();
  void send_repair(Rank rank);
  void proven(Rank rank, Version version);
  void maybe_all_left();
  void maybe_nobody_came();
  void end(bool success, std::string reason);
  [[nodiscard]] wire::Lease& lease(Rank rank) {
    return record_.ranks[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] Rank ended_rank() const;
  [[nodiscard]] Rank world_size() const { return static_cast<Rank>(record_.ranks.size()); }

  void emit(Action action);
  void store() { emit(Store{record_}); }
  void send(Link link, wire::Message message);
  void tell_agents(const wire::Message& message);

  Options options_;
  wire::Record record_;
  Phase phase_ = Phase::kAssembling;
  std::map<std::string, Member> members_;  // By node id.
  std::map<Link, std::string> nodes_;      // Node id by connection.
  // Processes that ask for a place which another incarnation still holds; there may be several.
  std::map<Link, wire::Register> knocks_;
  std::map<Link, wire::AgentState> agents_;
  std::map<Rank, wire::Report> reports_;  // Of the generation being formed.
  planner::Plan plan_;
  int round_ = 0;            // Of the plan: 1 for each its own arena, 2 copies from others.
  std::set<Rank> mending_;   // Of this round, not yet repaired.
  std::set<Rank> unproven_;  // Have made no step yet in the running generation.
  std::string cause_;
  Instant now_{};
  Instant started_{};
  Instant waiting_since_{};  // Since when ranks are stopped.
  std::deque<Action> held_;  // From the first unanswered Store on (not with it).
  Actions actions_;
};

}  // namespace holdfast::controller
