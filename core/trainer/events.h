// What may happen to a rank, and what its training thread and its control thread must do then.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/assigned.h"
#include "core/holding.h"
#include "wire/messages.h"

namespace holdfast::trainer {

// How an operation of the group ended.
enum class Outcome : std::uint8_t {
  kDone,
  kStopped,  // A fault came: somebody ended the group.
  kRefused,  // The ranks' requests differ, or one will never come: no recovery helps.
};

// ---- What may happen ----

// The program calls, in the training thread.
struct JoinCalled {
  Holding holding;  // What the arena holds, as the predecessor left it.
};
struct StepBegun {
  bool group_ended = false;  // The rank is in a group, and somebody has ended it.
};
struct StepEnded {
  double loss = 0;
};
struct EndCalled {};

// The training thread has done its Work.
struct Repaired {
  Holding holding;
  std::string error;        // Empty: done.
  bool too_late = false;    // Given up, because a newer generation has stopped this one.
  std::uint64_t bytes = 0;  // As in wire::Repaired, as is the next one.
  bool is_of_pages = false;
};
struct Formed {
  bool ended = false;      // Somebody has ended the group by now.
  bool linked = false;     // The group has links to other hosts, which may fail though nobody dies.
  bool exchanges = false;  // Private parts have holders: each step exchanges copies of them.
  std::vector<wire::HeldCopy> held;  // What this rank now holds for others.
};
struct NotFormed {
  bool mistaken = false;  // The options are wrong; no fault is the cause.
  std::string why;
  std::vector<wire::HeldCopy> held;
  bool linked = false;  // The group was to have links to other hosts.
};
struct LeftGroup {};
struct SumsDone {
  Outcome outcome = Outcome::kDone;
  std::string why;  // Why it was kRefused.
};
struct Staged {};
struct CopiesExchanged {
  Outcome outcome = Outcome::kDone;
  std::vector<wire::HeldCopy> held;  // What this rank now holds for others, whatever the outcome.
};
struct Arrived {
  Outcome outcome = Outcome::kDone;
  std::string why;
};
struct Updated {};
// Memory errors have taken pages that this rank trains with. Brought by the training thread as soon
// as it finds that, and it has not arrived at a commit barrier that is still open.
struct PagesLost {
  Holding holding;
  // 0: only of the committed version, of which nothing was made since. The step under way need not
  // be given up, since its version takes that one's place.
  std::uint32_t pages = 0;
};

// This rank's part of a snapshot is copied (Update::keeps), or could not be. Brought by the thread
// that copies, beside the next step.
struct PartKept {
  Version version = 0;
  std::string error;  // Empty: it is copied.
};

// Events of the control thread. It brings Assigned as well.
struct GroupStopped {  // StopGroup is carried out.
  bool idle = false;   // None of the group's sums is under way.
};
// After a sum has failed, none is under way any more. Brought by the thread of the sums.
struct SumsIdle {};
struct SnapshotAsked {  // The scheduler wants this rank's part of a snapshot.
  Generation generation = 0;
  Version version = 0;
};
struct Released {};  // The end of the training is on record.
struct JobOver {
  bool success = false;
  wire::Reason reason;
};
// The scheduler has been out of reach for too long. Repeated until InReach.
struct OutOfReach {
  wire::Reason reason;
};
struct InReach {};
struct TimePassed {};

using Event = std::variant<JoinCalled, StepBegun, StepEnded, EndCalled, Repaired, Formed, NotFormed,
                           LeftGroup, SumsDone, Staged, CopiesExchanged, Arrived, Updated,
                           PagesLost, PartKept, Assigned, GroupStopped, SumsIdle, SnapshotAsked,
                           Released, JobOver, OutOfReach, InReach, TimePassed>;
inline constexpr const char* kEventNames[] = {
    "join called",      "step begun",    "step ended", "end called",     "repaired",
    "formed",           "not formed",    "left group", "sums done",      "staged",
    "copies exchanged", "arrived",       "updated",    "pages lost",     "part kept",
    "assigned",         "group stopped", "sums idle",  "snapshot asked", "released",
    "job over",         "out of reach",  "in reach",   "time passed"};
static_assert(std::size(kEventNames) == std::variant_size_v<Event>);

// ---- What the training thread must do, in this order ----

struct Repair {
  Generation generation = 0;
  Version version = 0;
  wire::Order order;
};
struct Unstage {};  // Drop the staged step, also in what is held for others.
struct JoinGroup {  // Answered by Formed or NotFormed.
  Generation generation = 0;
};
struct LeaveGroup {};  // If it is in one. Done only when the group's sums have ended.
struct AwaitSums {};
struct Stage {
  Version version = 0;
};
// Give the staged private part to its holder and take those of the wards, so that two hosts have
// the step before the barrier.
struct ExchangeCopies {
  Version version = 0;
};
struct Hold {};    // Wait before the commit barrier, by order, until there is other work.
struct Arrive {};  // At the commit barrier.
struct Update {    // Make the staged step, also in what is held for others.
  // Then begin to copy what this rank has to give for a snapshot of this version.
  bool keeps = false;
};

// Back to the program.
struct Return {
  enum class What : std::uint8_t {
    kJoined,
    kBegun,
    kBegunAnew,  // The group was formed anew.
    kTooLate,    // No step was begun: the rank `ended` has ended its training.
    kCommitted,
    kCommittedByPlan,  // The step was made after a fault, since all had staged it.
    kVoid,
    kEnded,           // The training has ended. A server may hear it in any call, and ends then.
    kEndUnconfirmed,  // The scheduler has not answered.
    kFailed,          // The job can not go on, for `reason`: tell the scheduler.
    kOver,  // The job is over, for `reason`, which the scheduler knows or can not be told.
  };
  What what = What::kOver;
  Rank ended = kNoRank;
  wire::Reason reason = {};
};
using Work = std::variant<Repair, Unstage, JoinGroup, LeaveGroup, AwaitSums, Stage, ExchangeCopies,
                          Hold, Arrive, Update, Return>;

// ---- What must be done at once, by whichever thread brought the event ----

struct Do {  // Give it to the training thread.
  Work work;
};
struct Say {  // Send to the scheduler, if it can be reached now. It asks again for what gets lost.
  wire::Message message;
};
// End the groups of generations up to this one, and the forming of such groups. Must not wait.
struct StopGroup {
  Generation generation = 0;
};
struct StopRepair {};  // The repair under way comes too late: it may end as soon as it can.
struct Resume {        // From here on the rank trains in this generation.
  Generation generation = 0;
  Version version = 0;
  Rank ended = kNoRank;                      // A rank that will never join (P33); kNoRank: none.
  std::shared_ptr<const AddressBook> peers;  // Empty: all ranks share one memory.
};
// For traces.
struct NoteStopped {
  Generation generation = 0;
};
struct NoteParked {
  Holding holding;
  Generation generation = 0;  // The generation in which it trained.
  Instant called_at{};        // When the program made the call in which it waits.
};
using Action = std::variant<Do, Say, StopGroup, StopRepair, Resume, NoteStopped, NoteParked>;
using Actions = std::vector<Action>;

}  // namespace holdfast::trainer
