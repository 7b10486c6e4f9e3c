// How the training of this rank stands, and the means to act. All rules of the trainer share one
// Training: ProgramCall, StepCommit, Recovery, ... (core/trainer/machine.h). It decides nothing
// itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/ids.h"
#include "core/holding.h"
#include "core/table.h"
#include "core/trainer/events.h"
#include "wire/messages.h"

namespace holdfast::trainer {

struct Options {
  bool solo = false;    // One rank without a scheduler.
  bool serves = false;  // A server: its training has ended when the job has ended in good order.
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
  kHeld,        // Waits before the commit barrier, because the job is paused.
  kArriving,    // Waits at the commit barrier.
  kUpdating,
  kSpokenFor,  // The control thread has reported; the training thread has yet to come back.
  kUncertain,  // The group has ended, or was not formed; waits to hear why.
  kLeaving,    // Leaves its group.
  kEnding,     // The training has ended; waits until that is on record.
  kOver,       // Everything is over: each further call gets the same answer.
};
inline constexpr std::size_t kStates = 17;
[[nodiscard]] const char* name(State state);

// The table {state × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<State>> transitions();

struct Training {
  explicit Training(Options chosen) : options(chosen) {}

  Options options;
  State state = State::kOpened;
  Holding holding;                  // What the arena holds.
  Generation generation = 0;        // The newest in which the rank was told to train.
  Generation stopped_for = 0;       // The newest for which it was told to stop.
  std::uint32_t pages_lost = 0;     // Since it went on in this generation.
  std::optional<JobOver> over;      // The job's end, once it is known.
  std::optional<Instant> deadline;  // When TimePassed is wanted; nullopt: no timer.
  Instant now{};
  // Index of the event that is being handled, and the state before the event.
  std::size_t event = 0;
  State from = State::kOpened;
  Actions actions;

  void enter(State next);
  void emit(Action action) { actions.push_back(std::move(action)); }
  void work(Work work) { emit(Do{std::move(work)}); }
  void say(wire::Message message) { emit(Say{std::move(message)}); }
  void stop_group();
  // Whether the generation in which the rank trains was stopped, or the job is over.
  [[nodiscard]] bool stopped() const { return !options.solo && (stopped_for > generation || over); }
};

}  // namespace holdfast::trainer
