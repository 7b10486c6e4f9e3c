// The members by rank, or before the ranks are given those who have come; and all that is counted
// and looked up of them. Only this class changes a member, so no count can disagree with it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "core/controller/member.h"
#include "wire/messages.h"

namespace holdfast::controller {

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
