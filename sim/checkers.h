// Checkers: the invariants of the protocol, checked from outside. They know nothing about how the
// world is simulated or how the machines decide. docs/protocol/recovery.md says which sentence each
// of them checks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "core/address_book.h"
#include "wire/messages.h"

namespace holdfast::sim {

// One rank's state memory. Its content is a number that depends on everything that went into it.
struct Arena {
  Version version = kNoVersion;
  Version staged = kNoVersion;
  bool updating = false;  // The update to `staged` has begun; whoever opens the arena finishes it.
  std::uint64_t content = 0;
  std::uint64_t gradient = 0;  // The gradient of the staged step.
  std::uint64_t owner = 0;     // The process that opened the arena last.
  bool spent = false;          // Lost after its rank had ended its training.
  // Pages were lost, and hold zeros: of the state at `version`, or of the gradient. `content` and
  // `gradient` say what would be there without that.
  bool lost_state = false;
  bool lost_gradient = false;
  bool is_noticed = false;  // The process that trains has noticed that.
  [[nodiscard]] bool has_lost() const { return lost_state || lost_gradient; }
  [[nodiscard]] Version reached() const { return updating ? staged : version; }
};

inline constexpr std::uint64_t kInitialContent = 0x5eed;
inline constexpr std::uint64_t kGarbage = 0xbad;  // Content that is only half written.
// What `rank`, whose arena has `content`, adds to the gradient of step n. A step's gradient is the
// sum over all ranks.
[[nodiscard]] std::uint64_t contribution(std::uint64_t content, Rank rank, Version n);
[[nodiscard]] std::uint64_t updated(std::uint64_t content, std::uint64_t gradient, Version n);

class Checkers {
 public:
  Checkers(Rank ranks, Version steps);

  // The world calls these functions when what they name happens.

  // The scheduler sends `message` to the process `incarnation` that holds `rank` (kNoRank: it is no
  // worker, or has no rank yet). `durable`: the record that a crash right now would leave.
  void said(const wire::Message& message, Rank rank, Incarnation incarnation,
            const std::optional<wire::Formation>& durable);
  void began(Generation generation);  // The scheduler has begun to form it.
  void went(Rank rank, Generation generation, Version version, const std::vector<Arena>& arenas);
  // A rank goes to this generation, to which all ranks belong, and looks for them at `places`.
  void met(Generation generation, const std::vector<PeerPlace>& places);
  void gathered(Generation generation);  // An operation of its group is complete.
  void wrote(const Arena& arena, std::uint64_t process);
  void copies(const Arena& source, Version version);
  void committed(const Arena& arena);
  // told(): the scheduler has learned that a rank has committed `version`. forgot(): a scheduler
  // has died, and its successor knows of `version` at most.
  void told(Version version) { told_ = std::max(told_, version); }
  void forgot(Version version) { told_ = std::min(told_, version); }
  // It is on record that all ranks give up what they hold for a snapshot of `version`.
  void loads(Version version) {
    told_ = committed_ = version;
    stands_at_ = std::min(stands_at_, version);
  }
  // The scheduler takes it that by this order, as in wire::Assignment::pauses, no rank can make a
  // step any more.
  void stands_still(std::uint64_t order);
  void ended_well(const std::vector<Arena>& arenas);
  void gave(Rank rank, std::uint64_t value) { given_[rank].insert(value); }
  // A process has read `value` as that of `rank`, in the exchange before the sessions.
  void got(Rank rank, std::uint64_t value);
  // The scheduler has sent this version of the list, a value to which each process appends itself
  // once, followed by a space.
  void saw_list(wire::KeyVersion version, const std::string& list);
  void wiped() { wiped_ = true; }

  void violate(std::string what);  // The first one counts.
  [[nodiscard]] const std::string& violation() const { return violation_; }

 private:
  void said_to_run(const wire::Assignment& part, const std::optional<wire::Formation>& durable);

  struct Formed {
    Version version = 0;
    std::uint64_t content = 0;
    std::set<Rank> ranks;
  };
  Version steps_;
  std::vector<std::uint64_t> undisturbed_;  // The content of every version without any fault.
  std::set<Generation> announced_;          // Generations for which a kStopping was sent.
  std::set<Generation> begun_;
  std::map<Generation, Version> resumed_;             // From the kRunning assignments sent.
  std::map<Generation, Formed> formed_;               // From the ranks that went there.
  std::map<Generation, std::vector<PeerPlace>> met_;  // Where the ranks look for each other.
  Generation newest_ = 0;                             // The newest that any rank went to.
  Version committed_ = 0;                             // The newest that was ever committed,
  Version told_ = 0;                                  // and the newest that the scheduler knows.
  std::map<Rank, std::set<std::uint64_t>> given_;     // The values put by each rank's processes.
  std::map<Rank, std::uint64_t> got_;
  std::map<wire::KeyVersion, std::string> lists_;
  std::uint64_t order_ = 0;   // The newest that any rank was told,
  std::uint64_t stands_ = 0;  // and the newest by which the job stood still; 0: none.
  Version stands_at_ = 0;
  bool wiped_ = false;
  std::string violation_;
};

}  // namespace holdfast::sim
