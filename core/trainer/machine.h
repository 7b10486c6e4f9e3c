// What a rank does: the fate of its steps, and what the scheduler hears of them.
//
// It decides when the training thread parks, repairs its arena, joins a group, stages, commits and
// updates, and what becomes of a step that a fault has met. It alone knows whether the rank is
// parked, repairs or trains, what it holds, and up to which generation it was stopped.
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
  bool solo = false;    // A world of its own: there is no scheduler.
  bool protect = true;  // HOLDFAST_PROTECT. Without it no step is kept that one could go back to.
  Duration replacement_timeout{};  // How long the cause of a fault is waited for; and how long a
                                   // call waits for peers while no scheduler answers (P38).
  Duration link_patience{};        // How long until the scheduler hears that links have failed.
  Duration forming_patience{};     // The same, after a group that could not be formed.
  Duration scheduler_timeout{};    // How long the confirmation of the end is waited for.
  Duration progress_interval{};    // Between two words about committed steps.
};

enum class State : std::uint8_t {
  kOpened,  // The arena is open; nothing is agreed.
  kParked,  // The arena is at rest, and orders are waited for.
  kRepairing,
  kGoing,     // It shall train in a generation and has no group of it yet.
  kForming,   // Joins the group.
  kStepping,  // In the group. The program computes, or is between two steps.
  kSumming,   // The step ends: waits for its sums.
  kStaging,
  kExchanging,  // Gives its private part to its holder, and takes what it holds for others.
  kArriving,    // Waits at the commit barrier.
  kUpdating,
  kSpokenFor,  // The control thread has reported; the training thread has yet to come back.
  kUncertain,  // Its group has ended; waits to hear of the fault.
  kLeaving,    // Leaves its group.
  kEnding,     // The training has ended; waits until that is on record.
  kOver,       // Nothing more will be done.
};
inline constexpr std::size_t kStates = 16;
[[nodiscard]] const char* name(State state);

// How an operation of the group ended.
enum class Outcome : std::uint8_t {
  kDone,
  kStopped,  // A fault came: somebody ended the group.
  kRefused,  // The ranks do not do the same, or one will never come: no recovery helps.
};

// ---- What may happen ----

// The program calls, in the training thread.
struct JoinCalled {
  Holding holding;  // Of the arena, as its predecessor left it.
};
struct StepBegun {
  bool group_ended = false;  // Where it is in a group: somebody has ended that.
};
struct StepEnded {
  double loss = 0;
};
struct EndCalled {};

// The training thread has done its Work.
struct Repaired {
  Holding holding;
  std::string error;      // Empty: done.
  bool too_late = false;  // It was given up, since a newer generation has stopped this one.
};
struct Formed {
  bool ended = false;      // Somebody has ended the group by now.
  bool linked = false;     // It has links to other hosts, which may fail though nobody dies.
  bool exchanges = false;  // Private parts have holders: each step exchanges copies of them.
  std::vector<wire::HeldCopy> held;  // What this rank holds for others, as it has come now.
};
struct NotFormed {
  bool mistaken = false;  // Its options are wrong: no fault is the cause.
  std::string why;
  std::vector<wire::HeldCopy> held;
  bool linked = false;  // It was to have links to other hosts.
};
struct LeftGroup {};
struct SumsDone {
  Outcome outcome = Outcome::kDone;
  std::string why;  // Of kRefused.
};
struct Staged {};
struct CopiesExchanged {
  Outcome outcome = Outcome::kDone;
  std::vector<wire::HeldCopy> held;  // As it is now, whatever the outcome.
};
struct Arrived {
  Outcome outcome = Outcome::kDone;
  std::string why;
};
struct Updated {};

// The control thread. It brings Assigned as well.
struct GroupStopped {  // StopGroup is carried out.
  bool idle = false;   // None of the group's sums is under way.
};
struct SumsIdle {};  // No sum is under way any more, after one has failed. By the sums' thread.
struct Released {};  // The end of the training is on record.
struct JobOver {
  bool success = false;
  wire::Reason reason;
};
struct OutOfReach {  // The scheduler has been gone for too long. Said again and again until
                     // InReach.
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
struct Unstage {};  // The staged step is void, also of what it holds for others.
struct JoinGroup {  // Answered by Formed or NotFormed.
  Generation generation = 0;
};
struct LeaveGroup {};  // If there is one; its sums have ended afterwards.
struct AwaitSums {};
struct Stage {
  Version version = 0;
};
// Gives its staged private part to its holder and takes those of its wards, so at the barrier two
// hosts have the step.
struct ExchangeCopies {
  Version version = 0;
};
struct Arrive {};  // At the commit barrier.
struct Update {};  // Also of what it holds for others.

// Back to the program.
struct Return {
  enum class What : std::uint8_t {
    kJoined,
    kBegun,
    kBegunAnew,  // The group was formed anew.
    kTooLate,    // No step was begun: `ended` has ended its training.
    kCommitted,
    kCommittedByPlan,  // The step was made after a fault, since all had staged it.
    kVoid,
    kEnded,
    kEndUnconfirmed,  // The scheduler has not answered.
    kFailed,          // The job can not go on, for `reason`: tell the scheduler.
    kOver,            // For `reason`, which the scheduler knows or can not be told.
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
struct Say {  // To the scheduler, if it can be reached now. It asks again for what gets lost.
  wire::Message message;
};
struct StopGroup {  // Ends the groups of generations up to this one, and their forming. Never
                    // waits.
  Generation generation = 0;
};
struct StopRepair {};  // The repair under way comes too late: it may end as soon as it can.
struct Resume {        // From here on it shall train in this generation.
  Generation generation = 0;
  Version version = 0;
  Rank ended = kNoRank;                      // Will never join (P33). kNoRank: all may.
  std::shared_ptr<const AddressBook> peers;  // Empty: all share one memory.
};
// For traces.
struct NoteStopped {
  Generation generation = 0;
};
struct NoteParked {
  Holding holding;
  Generation generation = 0;  // In which it trained.
  Instant called_at{};        // When the program's call came in which it waits.
};
using Action = std::variant<Do, Say, StopGroup, StopRepair, Resume, NoteStopped, NoteParked>;
using Actions = std::vector<Action>;

// {state × event}; see core/table.h.
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
  // The newest generation that the scheduler has stopped it for.
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
  Generation generation_ = 0;    // The newest that it was told to train in.
  Generation stopped_for_ = 0;   // The newest that it was told to stop for.
  Generation repaired_for_ = 0;  // The newest whose order is carried out.
  Rank ended_ = kNoRank;         // Its training has ended, so that this generation has no group.
  Version target_ = 0;           // That the step under way makes.
  double loss_ = 0;              // Of that step.
  Instant called_at_{};          // When the program's newest call came.
  bool reformed_ = false;        // This call has lost a group.
  bool linked_ = false;          // As of Formed, as is the next.
  bool exchanges_ = false;
  std::optional<Instant> gives_up_at_;  // While kUncertain, and not yet said of its group's end.
  bool said_ = false;                   // While kLeaving: it has reported already.
  std::string not_formed_;              // While kUncertain: why the group could not be formed.
  Repair repair_;                       // While kRepairing.
  std::optional<Assigned> order_;       // Came before its thread was back.
  std::optional<wire::Finished> finished_;
  std::optional<JobOver> over_;
  std::optional<wire::Reason> unreachable_;
  std::optional<Return> final_;  // Once kOver, for calls that still come.
  std::optional<Instant> deadline_;
  Generation told_generation_ = 0;  // Of the last Progress.
  Instant told_at_{};
  Instant now_{};
  // What is being handled, and the state before that.
  std::size_t event_ = 0;
  State from_ = State::kOpened;
  Actions actions_;
};

}  // namespace holdfast::trainer
