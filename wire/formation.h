// The formation: the one durable value that says who trains, from which version, and what each rank
// has to do before it goes on. The scheduler's journal holds exactly one, replaced whole, and
// beside it the job's key-values and remarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/number.h"
#include "base/text.h"
#include "wire/reason.h"

namespace holdfast::wire {

// The most entries of a list, unless wire/fields.h has a lower bound: far more than a job can have
// ranks, places or agents.
inline constexpr std::size_t kMaxListLength = 65536;

// One rank of the roster, and the process that holds it.
struct Seat {
  std::string node_id;
  Incarnation incarnation = 0;  // 0: no process has it.
  std::uint64_t attempt = 0;
  std::int64_t pid = 0;
  std::string host;
  std::string domain;    // As in Register.
  std::string endpoint;  // Where other hosts reach it. Empty: only through its host's memory.
  std::string memory;    // As in Register: names the memory that it can share.
  // The rank was on another host before. So an arena that its present host may still have for it is
  // older than the rank's state.
  bool moved = false;
  std::string agent;      // Owns the place: only its processes may have it. Empty: any process may.
  bool given = false;     // Another agent owned it before: that one asks for it too late.
  bool finished = false;  // The rank's training has ended in good order, at `version`.
  Version version = 0;    // Only if finished.
  bool operator==(const Seat&) const = default;
};

// Where a copy of a rank's state lies.
struct Location {
  Rank holder = kNoRank;
  std::string host;
  std::string endpoint;  // Where to ask for it. Empty: it lies in memory that the asker shares.
  bool operator==(const Location&) const = default;
};

enum class Act : std::uint8_t {
  kKeep,     // It holds the version already.
  kFinish,   // Make the staged update: it was committed elsewhere.
  kReceive,  // Copy everything from `source`.
  kBegin,    // Commit version 0 from what the program initialised.
  kLoad,     // Give up what is held, and take the version from the snapshot.
};
[[nodiscard]] constexpr bool is_known(Act act) {
  return act <= Act::kLoad;
}
constexpr const char* name(Act act) {
  switch (act) {
    case Act::kKeep:
      return "keep";
    case Act::kFinish:
      return "finish";
    case Act::kReceive:
      return "receive";
    case Act::kBegin:
      return "begin";
    case Act::kLoad:
      return "load";
  }
  return "?";
}

struct Order {
  Act act = Act::kKeep;
  Location source;  // For kReceive.
  // For kReceive: where the private part comes from, if not from `source`. Its holder is kNoRank if
  // the private part comes along with the rest, or is not needed.
  Location private_source;
  // The rank has moved to this host. Copies that it may have held here for others are outdated.
  bool moved = false;
  std::string snapshot;  // For kLoad: SnapshotName::name.
  bool operator==(const Order&) const = default;
};

// A snapshot on the disk that is whole: the state of all ranks at one version.
struct SnapshotName {
  Version version = 0;
  std::string name;  // Of its folder.
  bool operator==(const SnapshotName&) const = default;
};

// Each snapshot has a name of its own. Generation 0: the last one of a job that has ended.
[[nodiscard]] inline std::string name_of_snapshot(std::uint64_t run_id, Generation generation,
                                                  Version version) {
  return cat(hex(run_id), '-', generation, '-', version);
}

// The most remarks of a job: all that come later are left out.
inline constexpr std::size_t kMaxRemarks = 200;
// What all users of the job are told, though it decides nothing. The journal keeps each one beside
// the formation, by its number from 1 on.
struct Remarked {
  std::int64_t unix_ms = 0;  // When, by the scheduler's wall clock; 0: not known.
  Reason what;
  bool operator==(const Remarked&) const = default;
};

// The phases of a job, as named in traces, reports and docs.
enum class Stage : std::uint8_t { kAssembling, kStopping, kRepairing, kRunning, kEnded };
[[nodiscard]] constexpr bool is_known(Stage stage) {
  return stage <= Stage::kEnded;
}

struct Formation {
  std::string job;
  std::uint64_t run_id = 0;   // Tells this run's files from those of an earlier one.
  Generation generation = 0;  // The newest number in use; 0: none yet.
  Stage stage = Stage::kAssembling;
  Version version = 0;  // The version from which the generation goes on, once it is repaired.
  std::uint64_t recoveries = 0;
  std::vector<Seat> roster;          // By rank; empty until all processes have come.
  std::vector<Order> orders;         // By rank, while kRepairing; else empty.
  Reason cause;                      // Why the generation is formed.
  bool success = false;              // Only once kEnded.
  Reason end;                        // Only once kEnded: why.
  std::vector<std::string> drained;  // Agents that get no places any more.
  // The newest version that was known to be committed by some rank when this value was stored; not
  // less than `version`. Stored after the first step, and later only along with other changes.
  Version reached = 0;
  std::vector<SnapshotName> snapshots;  // From which the job could begin again; the newest first.
  // The ranks give up what they hold for the snapshot of `version`. Until all have it, what a rank
  // has of other versions counts as nothing.
  bool loads = false;
  // How many orders to pause and to go on, in turn, there were. Odd: the job is paused.
  std::uint64_t pauses = 0;
  [[nodiscard]] bool is_paused() const { return pauses % 2 == 1; }
  bool operator==(const Formation&) const = default;
};

}  // namespace holdfast::wire
