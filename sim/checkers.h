// The invariants of the protocol, watched from outside. They know nothing of how the world is
// played or how the machines decide; docs/protocol/recovery.md says which sentence each keeps.
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
  bool updating = false;  // The update to staged has begun; who opens it finishes it.
  std::uint64_t content = 0;
  std::uint64_t gradient = 0;  // Of the step that is staged.
  std::uint64_t owner = 0;     // The process that opened it last.
  bool spent = false;          // Lost after its rank had ended its training.
  [[nodiscard]] Version reached() const { return updating ? staged : version; }
};

inline constexpr std::uint64_t kInitialContent = 0x5eed;
// What rank `rank` with `content` gives to the gradient of step n; they are added.
[[nodiscard]] std::uint64_t contribution(std::uint64_t content, Rank rank, Version n);
[[nodiscard]] std::uint64_t updated(std::uint64_t content, std::uint64_t gradient, Version n);

class Checkers {
 public:
  Checkers(Rank ranks, Version steps);

  // The scheduler says `message` to the holder of `rank` (kNoRank: not a worker, or not yet one)
  // whose incarnation is `incarnation`; `durable` is what a crash right now would leave.
  void said(const wire::Message& message, Rank rank, Incarnation incarnation,
            const std::optional<wire::Formation>& durable);
  void began(Generation generation);  // The scheduler has begun to form it.
  void went(Rank rank, Generation generation, Version version, const std::vector<Arena>& arenas);
  // A rank goes to this generation, in which nobody is missing, and looks for the others there.
  void met(Generation generation, const std::vector<PeerPlace>& places);
  void gathered(Generation generation);  // An operation of its group is complete.
  void wrote(const Arena& arena, std::uint64_t process);
  void copies(const Arena& source, Version version);
  void committed(const Arena& arena);
  // The scheduler has heard that a rank has committed it; if it dies, it knows no more than
  // `version`.
  void told(Version version) { told_ = std::max(told_, version); }
  void forgot(Version version) { told_ = std::min(told_, version); }
  void ended_well(const std::vector<Arena>& arenas);
  void gave(Rank rank, std::uint64_t value) { given_[rank].insert(value); }
  void got(Rank rank, std::uint64_t value);  // Of that rank, in the exchange before the sessions.
  // A value in which each process adds itself once, followed by a space, told by the scheduler.
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
  std::set<Generation> announced_;          // A Stop for it was sent.
  std::set<Generation> begun_;
  std::map<Generation, Version> resumed_;             // By any Resume that was sent.
  std::map<Generation, Formed> formed_;               // By those who went.
  std::map<Generation, std::vector<PeerPlace>> met_;  // Where they look for each other.
  Generation newest_ = 0;                             // That anybody went to.
  Version committed_ = 0;                             // The greatest ever,
  Version told_ = 0;                                  // and that the scheduler knows of.
  std::map<Rank, std::set<std::uint64_t>> given_;     // By its processes.
  std::map<Rank, std::uint64_t> got_;
  std::map<wire::KeyVersion, std::string> lists_;
  bool wiped_ = false;
  std::string violation_;
};

}  // namespace holdfast::sim
