// The members by rank, or before the ranks are given those who have come; and all that is counted
// and looked up of them. Only this class changes a member, so no count can disagree with it.
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
  kHeld,      // By a process that trains, or starts to.
  kSilent,    // By a process whose lease has run out; it may live.
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

// A seat, the process that holds it, and what is known of that. Before the ranks are given, a
// process that has registered.
struct Member {
  wire::Seat seat;
  Rank rank = kNoRank;  // Not given yet.
  SeatState state = SeatState::kHeld;
  Link link = 0;
  Link newest = 0;                // Of the connections on which this process has registered.
  bool joined = false;            // It has reported once.
  wire::Ending ending;            // Of the newest process of the seat that has ended,
  std::int64_t ended_pid = 0;     // with its number,
  std::uint64_t detected_ns = 0;  // and when its agent knew.
  Instant heard{};
  std::optional<Instant> called{};  // When its silence was first noticed: it has its last call.
  std::optional<Instant> timer{};   // When it is looked at; not later than its silence counts.
  Version version = 0;              // By its own Progress.
  double loss = 0;
  bool is_free = false;  // The agent whose place it is counts as lost.
  bool is_there = true;  // Nobody has said NotThere since it was heard last.

  [[nodiscard]] bool lease_runs() const {
    return state == SeatState::kHeld || state == SeatState::kFinished;
  }
};

class Roster {
 public:
  // An orphan's successor is waited for as long as `patience`.
  Roster(Duration lease, Duration patience) : lease_(lease), patience_(patience) {}

  [[nodiscard]] bool assembled() const { return !members_.empty(); }
  [[nodiscard]] Rank world_size() const { return static_cast<Rank>(members_.size()); }
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }  // By rank.
  // The rules look at members through these two, which count it.
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
  [[nodiscard]] const Member* find(const std::string& node_id) const;  // Of arrivals, too.
  // Who is here before the ranks are given, by node id.
  [[nodiscard]] const std::map<std::string, Member>& arrivals() const { return arrivals_; }

  [[nodiscard]] std::size_t in_state(SeatState state) const {
    return seats_[static_cast<std::size_t>(state)];
  }
  // Of the members whose training has not ended, how many
  [[nodiscard]] std::size_t absent() const { return absent_; }      // have no process,
  [[nodiscard]] std::size_t unjoined() const { return unjoined_; }  // one that never reported.
  [[nodiscard]] Version least_version() const { return versions_.begin()->first; }
  [[nodiscard]] const std::map<std::string, std::set<Rank>>& owners() const { return owned_; }
  [[nodiscard]] const std::set<Rank>& owned_by(const std::string& agent_id) const;
  [[nodiscard]] const std::set<Rank>& free() const { return free_; }    // Member::is_free
  [[nodiscard]] const std::set<Rank>& given() const { return given_; }  // Seat::given
  [[nodiscard]] bool has_vacant() const { return !vacant_.empty(); }  // A seat that no process has.

  // How many memories all members and arrivals have.
  [[nodiscard]] std::size_t memories() const { return memories_.size(); }
  // Some process of the job that this one can not reach, or that can not reach it: they share no
  // memory, and one of the two has no endpoint.
  [[nodiscard]] const Member* out_of_reach(const wire::Register& m) const;

  // Another spelling of the same whole number ("01", "1") that is here already; else nothing.
  [[nodiscard]] std::optional<std::string> same_number(const std::string& node_id) const;
  // The node ids of all arrivals: whole numbers 0..n-1 are the ranks; else the order is (host, node
  // id), where "worker-2" is before "worker-10".
  [[nodiscard]] std::vector<std::string> rank_order() const;
  const Member& arrive(const std::string& node_id);  // It may be here already.
  void forget_arrival(const std::string& node_id);
  // It has the next rank from now on.
  void seat(Member member);
  const Member& give_rank(const std::string& node_id, const std::string& agent_id);

  // Any change, in any state; and the frequent ones, which cost less.
  void alter(const Member& member, const std::function<void(Member&)>& change);
  void advance(const Member& member, SeatEvent event);
  void set_version(const Member& member, Version version);
  void set_loss(const Member& member, double loss) { own(member).loss = loss; }
  void hear(const Member& member, Instant now);

  // Whose silence counts from now on. Everybody else is looked at later again.
  [[nodiscard]] std::set<Rank> take_silent(Instant now);
  // When it has something to say, if it ever has.
  [[nodiscard]] std::optional<Instant> deadline() const;
  // Whose seats have changed since this was asked last.
  [[nodiscard]] std::set<Rank> take_changed() { return std::exchange(changed_, {}); }
  [[nodiscard]] bool has_changed() const { return !changed_.empty(); }
  // Whether anybody is to be found elsewhere since.
  [[nodiscard]] bool take_moved() { return std::exchange(has_moved_, false); }

 private:
  struct Sharers {  // Processes that share one memory.
    std::size_t all = 0;
    std::size_t unreachable = 0;  // Those without an endpoint.
  };
  [[nodiscard]] Member& own(const Member& member);
  void count(const Member& member, bool in);
  void count_place(const wire::Seat& seat, bool in);
  [[nodiscard]] const Member* one_with(const std::string& memory) const;
  [[nodiscard]] Instant silent_at(const Member& member) const;
  void watch(Member& member);

  Duration lease_;
  Duration patience_;
  std::vector<Member> members_;             // Empty until all processes have come.
  std::map<std::string, Member> arrivals_;  // Until then.
  std::map<std::string, Rank> ranks_;       // By node id.
  std::array<std::size_t, kSeatStates> seats_{};
  std::size_t absent_ = 0;
  std::size_t unjoined_ = 0;
  std::map<Version, std::size_t> versions_;      // How many of members_ are at each.
  std::set<std::pair<Instant, Rank>> timers_;    // As of Member::timer.
  std::map<std::string, std::set<Rank>> owned_;  // By Seat::agent, where there is one.
  std::set<Rank> free_;
  std::set<Rank> given_;
  std::set<Rank> vacant_;
  std::map<std::string, Sharers> memories_;
  std::size_t unreachable_ = 0;  // Of all these.
  std::set<Rank> changed_;
  bool has_moved_ = false;
  mutable std::uint64_t looks_ = 0;
};

}  // namespace holdfast::controller
