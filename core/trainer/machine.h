// What a rank does: the fate of its steps, and what the scheduler hears of them.
//
// The machine decides when the training thread parks, repairs its arena, joins a group, stages,
// commits and updates, and what becomes of a step that a fault has met. It alone knows whether the
// rank is parked, repairs or trains, what it holds, and up to which generation it was stopped.
//
// Pure: no clock, no I/O, no threads. Two threads of a worker bring events, one at a time. The
// training thread is in one call of the program at a time. It does the Work that it is given, in
// order, tells how that went, and goes back to the program with Return. The control thread brings
// what the scheduler assigns, and is answered at once, also while the training thread computes. Why
// it is right: docs/protocol/recovery.md.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "core/assigned.h"
#include "core/holding.h"
#include "core/table.h"
#include "wire/messages.h"

namespace holdfast::trainer {

struct Options {
  bool solo = false;  // One rank without a scheduler.
  // HOLDFAST_PROTECT. false: a fault ends the job, for want of a step to go back to.
  bool protect = true;
  // How long the cause of a fault is waited for; also how long a call waits for peers while no
  // scheduler answers (P38).
  Duration replacement_timeout{};
  Duration link_patience{};      // Wait before each GroupLost, after a group with links has ended.
  Duration forming_patience{};   // How long the cause is waited for if a group was not formed.
  Duration scheduler_timeout{};  // How long the end's confirmation is waited for.
  Duration progress_interval{};  // Least time between two Progress messages.
};

enum class State : std::uint8_t {
  kOpened,  // The arena is open; nothing is agreed.
  kParked,  // The arena is at rest, and the rank waits for orders.
  kRepairing,
  kGoing,     // It is to train in a generation, and has not joined the group yet.
  kForming,   // Joins the group.
  kStepping,  // In the group. The program computes, or is between two steps.
  kSumming,   // At the end of the step: waits for its sums.
  kStaging,
  kExchanging,  // Gives its private part to its holder, and takes what it holds for others.
  kArriving,    // Waits at the commit barrier.
  kUpdating,
  kSpokenFor,  // The control thread has reported; the training thread has yet to come back.
  kUncertain,  // The group has ended, or was not formed; waits to hear why.
  kLeaving,    // Leaves its group.
  kEnding,     // The training has ended; waits until that is on record.
  kOver,       // Everything is over: each further call gets the same answer.
};
inline constexpr std::size_t kStates = 16;
[[nodiscard]] const char* name(State state);

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
  std::string error;      // Empty: done.
  bool too_late = false;  // Given up, because a newer generation has stopped this one.
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

// Events of the control thread. It brings Assigned as well.
struct GroupStopped {  // StopGroup is carried out.
  bool idle = false;   // None of the group's sums is under way.
};
// After a sum has failed, none is under way any more. Brought by the thread of the sums.
struct SumsIdle {};
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

using Event =
    std::variant<JoinCalled, StepBegun, StepEnded, EndCalled, Repaired, Formed, NotFormed,
                 LeftGroup, SumsDone, Staged, CopiesExchanged, Arrived, Updated, Assigned,
                 GroupStopped, SumsIdle, Released, JobOver, OutOfReach, InReach, TimePassed>;
inline constexpr const char* kEventNames[] = {
    "join called",  "step begun", "step ended",    "end called", "repaired",         "formed",
    "not formed",   "left group", "sums done",     "staged",     "copies exchanged", "arrived",
    "updated",      "assigned",   "group stopped", "sums idle",  "released",         "job over",
    "out of reach", "in reach",   "time passed"};
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
struct Arrive {};  // At the commit barrier.
struct Update {};  // Make the staged step, also in what is held for others.

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
    kEnded,
    kEndUnconfirmed,  // The scheduler has not answered.
    kFailed,          // The job can not go on, for `reason`: tell the scheduler.
    kOver,  // The job is over, for `reason`, which the scheduler knows or can not be told.
  };
  What what = What::kOver;
  Rank ended = kNoRank;
  wire::Reason reason = {};
};
using Work = std::variant<Repair, Unstage, JoinGroup, LeaveGroup, AwaitSums, Stage, ExchangeCopies,
                          Arrive, Update, Return>;

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

// The table {state × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<State>> transitions();

class Machine {
 public:
  explicit Machine(Options options) : options_(options) {}

  [[nodiscard]] Actions step(Instant now, const Event& event);

  // When the training thread, which waits for Work, must bring TimePassed. nullopt: no timer.
  [[nodiscard]] std::optional<Instant> deadline() const { return deadline_; }

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] const Holding& holding() const { return holding_; }
  [[nodiscard]] Generation generation() const { return generation_; }
  // The newest generation for which the scheduler has stopped this rank.
  [[nodiscard]] Generation stopped_for() const { return stopped_for_; }

 private:
  enum class Call : std::uint8_t { kNone, kJoin, kBeginStep, kEndStep, kEnd };

  void on(const JoinCalled& e);
  void on(const StepBegun& e);
  void on(const StepEnded& e);
  void on(const EndCalled&);
  void on(const Repaired& e);
  void on(const Formed& e);
  void on(const NotFormed& e);
  void on(const LeftGroup&);
  void on(const SumsDone& e);
  void on(const Staged&);
  void on(const CopiesExchanged& e);
  void on(const Arrived& e);
  void on(const Updated&);
  void on(const Assigned& e);
  void on(const GroupStopped& e);
  void on(const SumsIdle&);
  void on(const Released&);
  void on(const JobOver& e);
  void on(const OutOfReach& e);
  void on(const InReach&) { unreachable_.reset(); }
  void on(const TimePassed&);

  void enter(State next);
  void work(Work work) { actions_.push_back(Do{std::move(work)}); }
  void say(wire::Message message) { actions_.push_back(Say{std::move(message)}); }
  void back(Return::What what);
  void back(Return result);
  void finish(Return result);
  void fail(wire::Reason reason);
  void end_over(wire::Reason reason);
  [[nodiscard]] bool is_over();
  void park();
  void rest();
  void form();
  void lose_group(Duration patience);
  void leave(bool said);
  void met(Outcome outcome, const std::string& why);
  void arrive();
  void update();
  void speak();
  void say_parked();
  void report();
  void stop(Generation generation);
  void stop_group();
  void carry_out(const Assigned& order);
  void go(const Assigned& order);
  [[nodiscard]] bool is_at_rest() const;
  [[nodiscard]] bool stopped() const {
    return !options_.solo && (stopped_for_ > generation_ || over_);
  }

  Options options_;
  State state_ = State::kOpened;
  Call call_ = Call::kNone;
  Holding holding_;
  Generation generation_ = 0;    // The newest in which it was told to train.
  Generation stopped_for_ = 0;   // The newest for which it was told to stop.
  Generation repaired_for_ = 0;  // The newest whose order it has carried out.
  Rank ended_ = kNoRank;   // A rank that has ended, so this generation has no group; kNoRank: none.
  Version target_ = 0;     // The version that the step under way makes.
  double loss_ = 0;        // The loss in the step under way.
  Instant called_at_{};    // When the program's newest call came.
  bool reformed_ = false;  // A group was lost during this call.
  bool linked_ = false;    // As in Formed, as is the next.
  bool exchanges_ = false;
  // While kUncertain, if the group had links: until then, GroupLost is said again and again.
  std::optional<Instant> gives_up_at_;
  bool said_ = false;              // While kLeaving: the report is made already.
  std::string not_formed_;         // While kUncertain: why the group could not be formed.
  Repair repair_;                  // While kRepairing.
  std::optional<Assigned> order_;  // Came before the training thread could take it.
  std::optional<wire::Finished> finished_;
  std::optional<JobOver> over_;
  std::optional<wire::Reason> unreachable_;
  std::optional<Return> final_;  // Once kOver: the answer to every further call.
  std::optional<Instant> deadline_;
  Generation told_generation_ = 0;  // In the last Progress.
  Instant told_at_{};
  Instant now_{};
  // Index of the event that is being handled, and the state before the event.
  std::size_t event_ = 0;
  State from_ = State::kOpened;
  Actions actions_;
};

}  // namespace holdfast::trainer
