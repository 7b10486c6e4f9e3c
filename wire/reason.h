// Why something happened or was decided. Machines and messages carry reasons as values; wording/
// says them in sentences, and nothing reads a sentence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/whereabouts.h"

namespace holdfast::wire {

// How a process ended, as far as it is known.
struct Ending {
  enum class Kind : std::uint8_t {
    kUnknown,     // It is dead; its agent learns how a moment later.
    kExited,      // By itself, with exit code `code`.
    kSignalled,   // By signal `code`.
    kWasStopped,  // A signal had stopped it, so its agent ended it.
    kWasSilent,   // Its lease had run out, so its agent ended it.
    kGone,        // It is not among its host's processes any more.
    kReplaced,    // Its agent has given its place to another process.
    kNotHeard,    // It may live, but its lease has run out.
    kWasHung,     // The others waited for it for HOLDFAST_HANG_TIMEOUT, so its agent ended it.
  };
  Kind kind = Kind::kUnknown;
  std::int32_t code = 0;
  bool operator==(const Ending&) const = default;
};
[[nodiscard]] constexpr bool is_known(Ending::Kind kind) {
  return kind <= Ending::Kind::kWasHung;
}

// Whom a forming group waits for, or who is here already while the job assembles.
struct Awaited {
  enum class Kind : std::uint8_t {
    kIsHere,       // Only `node_id` is set.
    kNotReplaced,  // `ending` tells how its last process ended.
    kNotReported,
    kNotRepaired,
  };
  Kind kind = Kind::kIsHere;
  Rank rank = kNoRank;
  std::string node_id;
  std::int64_t pid = 0;
  Ending ending;
  bool operator==(const Awaited&) const = default;
};
[[nodiscard]] constexpr bool is_known(Awaited::Kind kind) {
  return kind <= Awaited::Kind::kNotRepaired;
}

// The comment at each kind names the members that it sets.
struct Reason {
  enum class Kind : std::uint8_t {
    kNone,
    // Why a generation is formed.
    kJobStarts,
    kSchedulerRestarted,  // In the midst of a recovery.
    kRankLost,            // rank, pid, ending
    kRankCameBack,        // rank
    // What was planned.
    kGoOn,         // version
    kBeginAtZero,  // No rank holds a version yet.
    // Why a process is refused.
    kOtherProtocol,    // count: its protocol; total: the scheduler's
    kOtherJob,         // detail: the scheduler's job; other: the process's
    kPlacesTaken,      // node_id; total: places; detail: "server", or empty for a worker
    kNodeTaken,        // node_id; pid, host: of the process that has it. other: another name of the
                       // same rank, if that one is taken
    kOtherHost,        // node_id, host; other, other_host: of a process of the job
    kNewerProcess,     // rank
    kRefusedAsBefore,  // detail: the sentence of a scheduler with a former protocol
    // Why a process waits.
    kAssembling,    // count of total are here; detail: empty if there are no servers
    kRankHasEnded,  // rank
    kLeased,        // rank, pid, host; count: seconds
    // Why the job has ended.
    kAllEnded,              // total
    kNobodyAsked,           // total: workers have ended without asking for a rank
    kTooFewCame,            // count of total; awaited
    kNotFormedInTime,       // awaited
    kEndedWithoutTraining,  // rank
    kEndedEarly,            // rank, version
    kNoPlan,                // version: lost; rank: whose private part; kNoRank: the state of all
    kSchedulerInterrupted,  // count: signal
    // Why a rank's training, or an agent, can not go on. `rank`: the rank that reports it.
    kProgram,         // detail: the program's own words
    kUnprotected,     // version
    kNotRepaired,     // version; count: the wire::Act; detail
    kNotFormed,       // detail
    kNotTheSame,      // detail: the ranks' requests differ, or one will never come
    kWrongVersion,    // version: that is held; count: the version to go on from
    kReplacedSilent,  // The members of kLeased, or only `rank`: it was silent and has been replaced
    kNoCause,
    kOutOfReach,   // detail
    kTooOften,     // node_id, ending, version: times; total: allowed; detail: the option's name
    kTwice,        // node_id, ending, version; detail: the exception
    kInterrupted,  // count: signal
    kNotStarted,   // detail; count: tries on end
    kSchedulerLeft,
    // What an agent tells its user.
    kProcessEnded,     // node_id, ending; detail: the exception that ended it
    kSparesGivenUp,    // ending; count: times
    kSpareNotStarted,  // detail
    // Why a value is not kept.
    kNoRoom,  // count: bytes that all of them may have; total: how many there may be
    // Why a message is refused, and its sender's connection closed.
    kNotItsWord,    // count: kind of the message; total: the sender's wire::PeerKind
    kTwoProcesses,  // node_id: registered on the connection; other: tries to register on it, too
    kNotItsPlace,  // node_id; other: the agent that has it; other_host: of that agent. Not refused:
                   // told to the agent that asks for it, for its user
    kNotGiven,     // node_id; count: attempt
    kNotThatWorker,  // node_id, host; other_host: of the process with that incarnation
    kImpossible,     // rank, pid; version: that it claims; count: the newest that it can hold
    kTooMuch,        // count of total; detail: of what
    // A group over several hosts has ended, though no process has died.
    kGroupLost,          // rank: whose group has ended. Why a generation is formed.
    kGroupLostTooOften,  // rank; count: times without a step. Why the job has ended.
    // Ranks move: at a user's request, or because a host is free for ranks that another host runs
    // besides its own. Or why they do not.
    kMoves,        // count: ranks; host: from there; other_host: to that one. Also of a generation.
    kNoSuchHost,   // host: no agent of the job is there, or it has no ranks
    kNobodyTakes,  // count: ranks; host: their own; other_host: that was asked for
    kNotHeld,      // rank: no other host has a copy of its state, or of a part of it
    kNotNow,       // host: the job is not running yet, or another host is being emptied
    // What an agent tells its user.
    kGivenAway,  // count: places that it had; total: that it has still
    kDrained,    // The same: it takes none any more.
    kHostLost,   // host, count: its ranks; other_host: that takes them; empty: none does
    // Why a message is refused, too. Its sender: node_id; or other: an agent; neither: not known
    // yet, or the scheduler. host; detail: the address, and what is wrong
    kUnreadable,
    // What an agent tells its user of a rehearsal. node_id; version; detail: the verdict's
    // sentence; other: the log. Where the job is strict, the first is why it has ended.
    kRehearsalDiffers,
    kRehearsalUncertain,
    kRehearsalSkipped,  // Only in the log.
    kRehearsalWrong,
    // A rank that all others wait for. rank, pid, node_id, host; version: its newest step; doing;
    // count: for how many milliseconds; total: ranks that wait for it (0: all wait for each other;
    // -1: it is the only one); detail: what its process does; other: after how many seconds it is
    // ended; empty: it is not
    kHoldsUp,
    // rank, pid, host; count: pages. Memory errors have taken pages that it trains with. Why a
    // generation is formed, and told to users.
    kPagesLost,
    kPagesLostTooOften,  // rank, host; count: times without a step. Why the job has ended.
    // What a rank remarks. detail: a clause that says which replicas differed, and what was done.
    kReplicas,
    // What an observer who asks for a drill is told. All users are told of kDrill.
    // rank, pid, host; count: the DrillKind; total: Drill::for_ms; doing; version. Of a host: rank:
    // kNoRank; host; count; total: its ranks
    kDrill,
    kNoDrills,     // The job takes none.
    kNoSuchRank,   // rank; total: ranks of the job
    kNotTraining,  // rank: it has no process now, the job has not begun, or its training has ended
    kStepIsMade,   // rank; version: the step of the drill; count: the rank's newest
    // What a rank remarks: rank, pid, host. count: the rank whose bytes were damaged on their way
    // to it; other_host: that one's address
    kDamaged,
    // Its steps take longer than those of the others. rank, pid, host; kNoRank: all of the host's.
    // count: what its own part of a step takes; total: the median, in microseconds; doing: where
    // most of the difference is: kBetween or kComputing
    kSlow,
    kTooManyRemarks,  // No more are passed on.
    // What an observer who asks for a drill is told, too.
    kNoLinks,         // rank: all of the job share one host's memory
    kSchedulersHost,  // host: a drill would end the scheduler
    kOnlyHost,        // host
    kNotForHosts,     // count: the DrillKind
    kNoHost,          // host; detail: the hosts with agents of the job
    kAlone,           // rank: no other holds what it holds, so nobody would find a flipped bit
    // Snapshots. Told to users.
    kFromSnapshot,    // version; count: steps lost with the memory of all who had them; detail: its
                      // name. What was planned, too.
    kSnapshotFailed,  // version; rank or host; detail: why. The snapshot is left out.
    kSnapshotUnreadable,  // version; rank; detail: why. Why a generation is formed, too.
    // What an agent tells its user.
    kSnapshotFirst,    // count: signal; total: seconds. Before it ends, it waits for a snapshot.
    kSnapshotMade,     // version; detail: its name
    kSnapshotLacking,  // detail: why; empty: it took too long
    kStopped,          // Why the job, or an agent, ends: a user has said so.
    // What an observer who pauses the job, or has it go on, is told. All users are told of the
    // first and the last.
    kPaused,    // version: the newest step; count: 1: it was so before
    kPausing,   // Not all ranks have heard it, or they are in their own part of a step.
    kUnpaused,  // count: 1: it was not paused
  };
  Kind kind = Kind::kNone;
  Rank rank = kNoRank;
  std::int64_t pid = 0;
  Ending ending;
  std::int64_t count = 0;
  std::int64_t total = 0;
  Version version = 0;
  std::string node_id;
  std::string host;
  std::string other;
  std::string other_host;
  std::string detail;
  std::vector<Awaited> awaited;
  Doing doing = Doing::kStarting;
  bool operator==(const Reason&) const = default;
};
[[nodiscard]] constexpr bool is_known(Reason::Kind kind) {
  return kind <= Reason::Kind::kUnpaused;
}

}  // namespace holdfast::wire
