// Says which rank holds up the others, and has its agent end it if that was asked for.
//
// Each agent tells which of its ranks stand still (wire::StandingState). A rank that waits has come
// to a later operation of all ranks than the one that it waits for. So whoever stands at the
// earliest operation holds up all who stand at a later one. Of those at that one, who has not come
// to the exchange of private parts between hosts holds up who has. After a fault, whoever still
// stands in an older generation holds up the recovery. If all stand at the same operation, those in
// an exchange of some ranks wait for those who are in none. If nobody is in one, nobody waits for
// anybody: all evaluate, or compile. If all are, they wait for each other. Who has ended its
// training waits as well, for the job's end. A job's only rank is named if it stands for long.
// A parameter server takes part in no operation of the workers. One that is in an exchange, or at
// the commit barrier, waits; one that stands anywhere else holds up all.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "core/controller/job.h"
#include "wire/messages.h"

namespace holdfast::controller {

// Agents notice the same standstill at slightly different times: so long they are waited for.
inline constexpr Duration kGather = std::chrono::milliseconds(50);
// How long an agent may take to say what a process does.
inline constexpr Duration kInspection = std::chrono::milliseconds(700);
// How long a generation must be under way before a rank that stands in an older one counts: its
// agent may not have looked since.
inline constexpr Duration kNextLook = std::chrono::seconds(1);
// How long a rank is waited for by ranks that have all ended before it is named: the last one may
// write a checkpoint.
inline constexpr Duration kLastOnes = std::chrono::seconds(60);
// How long all ranks must stand in exchanges of some ranks to be named: much may be on its way.
inline constexpr Duration kExchange = std::chrono::seconds(10);
// How long a job's only rank must stand still to be named.
inline constexpr Duration kLone = std::chrono::seconds(30);
// How many ranks are named at a time.
inline constexpr std::size_t kNamed = 3;

class Stalls {
 public:
  explicit Stalls(Job& job) : job_(job) {}

  void hear(const std::vector<wire::StandingState>& before, const Agent& now);
  void check();
  [[nodiscard]] std::optional<Instant> deadline() const { return look_at_; }
  // The ranks that hold up others and were named, as told to the agents.
  [[nodiscard]] std::vector<wire::Reason> named() const;

 private:
  struct Blocker {
    Incarnation incarnation = 0;
    wire::StandingState state;
    Link agent = 0;
    Instant since{};      // Since when it stands; or, in blockers(), since when the others wait.
    Duration patience{};  // How long it must have held up the others to be named.
    // Ranks that wait for it, or have ended; 0: all ranks wait for each other; -1: it is alone.
    std::int64_t waiting = 0;
    // Others wait, for it alone, and its process has made a step: it is no first compilation, and
    // no checkpoint of the last rank.
    bool may_be_ended = false;
    std::optional<Instant> asked;  // When its agent was asked what it does.
    bool is_told = false;
    bool is_evicted = false;
  };
  struct Harmless {
    Incarnation incarnation = 0;
    Duration longest{};
  };

  [[nodiscard]] std::map<Rank, Blocker> standing(std::size_t& idle_servers) const;
  struct Wait {
    std::size_t waiting = 0;    // Ranks that wait, without those that have ended.
    Instant not_before{};       // Since then at the earliest.
    bool is_old = false;        // For ranks in an older generation.
    bool all_exchange = false;  // Those that are left are in exchanges of some ranks themselves.
  };
  [[nodiscard]] std::map<Rank, Blocker> blockers() const;
  [[nodiscard]] std::map<Rank, Blocker> blame(std::map<Rank, Blocker> all, const Wait& wait) const;
  void note_changes();
  void note_end(Rank rank, const Blocker& blocker);
  [[nodiscard]] Instant names_at(Rank rank, const Blocker& blocker) const;
  void follow(Rank rank, Blocker& blocker);
  [[nodiscard]] wire::Reason reason(Rank rank, const Blocker& blocker) const;
  void look_at(Instant when);

  Job& job_;
  std::optional<Instant> look_at_;
  std::map<Rank, Blocker> blockers_;
  Generation generation_ = 0;  // The newest, as far as check() has seen,
  Instant began_{};            // and since when.
  std::size_t ended_ = 0;      // How many ranks have ended their training, likewise,
  Instant ended_at_{};         // and when the last of them has.
  // The longest standstill of each rank that was named and went on by itself. It is named again
  // only if it stands for twice as long: an evaluation comes back in each epoch.
  std::map<Rank, Harmless> harmless_;
};

}  // namespace holdfast::controller
