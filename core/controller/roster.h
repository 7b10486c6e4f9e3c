// The members by rank, or, before the ranks are given, the processes that have come (arrivals); and
// all counts and look-ups of them. Only this class changes a member, so the counts are always
// right.
#pragma once

#include <array>
#include <functional>

#include "base/ids.h"
#include "core/controller/key_values.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::controller {

// What a seat is: whether a process holds it, and whether its training has ended.
enum class SeatState : std::uint8_t {
  kHeld,      // Held by a process that trains, or starts to.
  kSilent,    // Held by a process whose lease has run out; it may live.
  kDead,      // Its process is dead.
  kFinished,  // Its training has ended in good order; the process is still here.
  kOrphaned,  // Its training has ended, but its process died before it was told that all is well.
  kLeft,      // Its training has ended, and its process has left.
  kDeserted,  // Its process has ended with exit code 0 without ending its training.
};
inline constexpr std::size_t kSeatStates = 7;
enum class SeatEvent : std::uint8_t {
  kTakenOver,  // Another process holds it from now on.
  kTrainingEnded,
  kDied,       // Not in good order.
  kEndedWell,  // Exit code 0, or a finished process that is gone.
  kLeaseOver,
  kHeard,
  kHungUp,  // A finished process without an agent has closed its connection.
};
inline constexpr std::size_t kSeatEvents = 7;
[[nodiscard]] const char* name(SeatState state);
[[nodiscard]] const char* name(SeatEvent event);
// The table {state × event}. Nothing: the event leaves the state as it is.
[[nodiscard]] std::optional<SeatState> after(SeatState state, SeatEvent event);

// A seat, the process that holds it, and what is known of that process. Before the ranks are given:
// an arrival, that is a process that has registered.
struct Member {
  wire::Seat seat;
  Rank rank = kNoRank;  // kNoRank: not given yet.
  SeatState state = SeatState::kHeld;
  Link link = 0;
  Link newest = 0;                // Newest connection on which this process has registered.
  bool joined = false;            // The process has sent a Report.
  wire::Ending ending;            // How the last process that the seat has lost ended,
  std::int64_t ended_pid = 0;     // its process id,
  std::uint64_t detected_ns = 0;  // and when its agent knew, by the agent's clock.
  Instant heard{};
  std::optional<Instant> called{};  // When its silence was noticed: its last call began then.
  std::optional<Instant> timer{};   // When its silence is checked next; never after it counts.
  Version version = 0;              // The newest that it has said or was ordered to reach.
  double loss = 0;
  std::uint32_t own_us = 0;      // As in Progress,
  std::uint32_t between_us = 0;  // both.
  Instant stepped{};             // When it has last told of a newer version.
  std::string holds;             // As in Progress.
  bool is_free = false;          // The agent that owns the place counts as lost.
  bool is_there = true;          // No NotThere has come since it registered.
  bool serves = false;           // Of an arrival: as in Register.

  [[nodiscard]] bool lease_runs() const {
    return state == SeatState::kHeld || state == SeatState::kFinished;
  }
};

class Roster {
 public:
  // `lease`: silence after which a member counts as lost. `patience`: how long the successor in an
  // orphaned seat is waited for.
  Roster(Duration lease, Duration patience) : lease_(lease), patience_(patience) {}

  [[nodiscard]] bool assembled() const { return !members_.empty(); }
  [[nodiscard]] Rank world_size() const { return static_cast<Rank>(members_.size()); }
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }  // By rank.
  // The rules look at members through at() and each(), which count the looks.
  [[nodiscard]] const Member& at(Rank rank) const {
    ++looks_;
    return members_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const std::vector<Member>& each() const {
    looks_ += members_.size();
    return members_;
  }
  [[nodiscard]] std::uint64_t looks() const { return looks_; }
  [[nodiscard]] Rank rank_of(const std::string& node_id) const;
  [[nodiscard]] const Member* find(const std::string& node_id) const;  // Arrivals, too.
  // By node id; empty once the ranks are given.
  [[nodiscard]] const std::map<std::string, Member>& arrivals() const { return arrivals_; }

  [[nodiscard]] std::size_t in_state(SeatState state) const {
    return seats_[static_cast<std::size_t>(state)];
  }
  // How many seats whose training has not ended are held by no process, or by a silent one.
  [[nodiscard]] std::size_t absent() const { return absent_; }
  // How many of the others have a process that has not reported yet.
  [[nodiscard]] std::size_t unjoined() const { return unjoined_; }
  [[nodiscard]] Version least_version() const { return versions_.begin()->first; }
  [[nodiscard]] Version newest_version() const { return versions_.rbegin()->first; }
  [[nodiscard]] const std::map<std::string, std::set<Rank>>& owners() const { return owned_; }
  [[nodiscard]] const std::set<Rank>& owned_by(const std::string& agent_id) const;
  [[nodiscard]] const std::set<Rank>& free() const { return free_; }    // Member::is_free
  [[nodiscard]] const std::set<Rank>& given() const { return given_; }  // Seat::given
  [[nodiscard]] bool has_vacant() const { return !vacant_.empty(); }  // A seat that no process has.

  // How many different memories the members and arrivals are in.
  [[nodiscard]] std::size_t memories() const { return memories_.size(); }
  // Some process of the job that this one can not reach, or that can not reach it: they share no
  // memory, and one of the two has no endpoint.
  [[nodiscard]] const Member* out_of_reach(const wire::Register& m) const;

  // An arrival's node id that spells the same whole number in another way ("01", "1"); nullopt:
  // none.
  [[nodiscard]] std::optional<std::string> same_number(const std::string& node_id) const;
  // How many arrivals are parameter servers (true), or workers.
  [[nodiscard]] std::size_t arrived(bool serves) const {
    return serves ? serving_ : arrivals_.size() - serving_;
  }
  // The node ids of all arrivals, by the rank that each is to get: first the workers. If their node
  // ids are the whole numbers 0..n-1, these are the ranks; else the order is (host, node id), with
  // "worker-2" before "worker-10". Then the servers, by number if all have one, else likewise.
  [[nodiscard]] std::vector<std::string> rank_order() const;
  const Member& arrive(const std::string& node_id);  // New, or here already.
  void forget_arrival(const std::string& node_id);
  // Adds a member, which gets the next rank.
  void seat(Member member);
  const Member& give_rank(const std::string& node_id, const std::string& agent_id);

  // alter() makes any change; the others make frequent ones, some of them at less cost.
  void alter(const Member& member, const std::function<void(Member&)>& change);
  void advance(const Member& member, SeatEvent event);
  void set_version(const Member& member, Version version);
  void set_loss(const Member& member, double loss) { own(member).loss = loss; }
  void set_stepped(const Member& member, Instant now) { own(member).stepped = now; }
  void set_times(const Member& member, std::uint32_t own_us, std::uint32_t between_us) {
    own(member).own_us = own_us;
    own(member).between_us = between_us;
  }
  void set_holds(const Member& member, std::string holds) { own(member).holds = std::move(holds); }
  void hear(const Member& member, Instant now);

  // The ranks whose silence counts from now on. All other members are checked again later.
  [[nodiscard]] std::set<Rank> take_silent(Instant now);
  // When take_silent() is due; nullopt: no member is watched.
  [[nodiscard]] std::optional<Instant> deadline() const;
  // The ranks whose seats have changed since the last call.
  [[nodiscard]] std::set<Rank> take_changed() { return std::exchange(changed_, {}); }
  [[nodiscard]] bool has_changed() const { return !changed_.empty(); }
  // Whether a member's memory, endpoint or domain has changed since the last call.
  [[nodiscard]] bool take_moved() { return std::exchange(has_moved_, false); }

 private:
  struct Sharers {  // Processes that share one memory.
    std::size_t all = 0;
    std::size_t unreachable = 0;  // Those without an endpoint.
  };
  [[nodiscard]] Member& own(const Member& member);
  [[nodiscard]] std::vector<std::string> in_order(bool serves) const;
  void count(const Member& member, bool in);
  void count_place(const wire::Seat& seat, bool in);
  [[nodiscard]] const Member* one_with(const std::string& memory) const;
  [[nodiscard]] Instant silent_at(const Member& member) const;
  void watch(Member& member);

  Duration lease_;
  Duration patience_;
  std::vector<Member> members_;             // Empty until all processes have come.
  std::map<std::string, Member> arrivals_;  // Empty once the ranks are given.
  std::map<std::string, Rank> ranks_;       // By node id.
  std::array<std::size_t, kSeatStates> seats_{};
  std::size_t serving_ = 0;  // Arrivals that are parameter servers.
  std::size_t absent_ = 0;
  std::size_t unjoined_ = 0;
  std::map<Version, std::size_t> versions_;      // How many members are at each version.
  std::set<std::pair<Instant, Rank>> timers_;    // The Member::timer of each, soonest first.
  std::map<std::string, std::set<Rank>> owned_;  // By Seat::agent; seats without one are left out.
  std::set<Rank> free_;
  std::set<Rank> given_;
  std::set<Rank> vacant_;
  std::map<std::string, Sharers> memories_;
  std::size_t unreachable_ = 0;  // The sum over memories_.
  std::set<Rank> changed_;
  bool has_moved_ = false;
  mutable std::uint64_t looks_ = 0;
};

}  // namespace holdfast::controller
