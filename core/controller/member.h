// A member of the job: a seat, the process that holds it, and what is known of that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/ids.h"
#include "core/controller/key_values.h"
#include "wire/formation.h"
#include "wire/messages.h"

namespace holdfast::controller {

// What a seat is: whether a process holds it, and whether its training has ended.
enum class SeatState : std::uint8_t {
  kHeld,      // By a process that trains, or starts to.
  kSilent,    // By a process whose lease has run out; it may live.
  kDead,      // Its process is dead.
  kFinished,  // Its training has ended in good order; the process is still here.
  kOrphaned,  // Its training has ended, but its process died before it was told that all is well.
  kLeft,      // Its training has ended, and its process has left.
  kDeserted,  // Its process has ended with exit code 0 without ending its training.
};
inline constexpr std::size_t kSeatStates = 7;
enum class SeatEvent : std::uint8_t {
  kTakenOver,  // Another process holds it from now on.
  kTrainingEnded,
  kDied,       // Not in good order.
  kEndedWell,  // Exit code 0, or a finished process that is gone.
  kLeaseOver,
  kHeard,
  kHungUp,  // A finished process without an agent has closed its connection.
};
inline constexpr std::size_t kSeatEvents = 7;
[[nodiscard]] const char* name(SeatState state);
[[nodiscard]] const char* name(SeatEvent event);
// The table {state × event}. Nothing: the event leaves the state as it is.
[[nodiscard]] std::optional<SeatState> after(SeatState state, SeatEvent event);

// Before the ranks are given, a process that has registered.
struct Member {
  wire::Seat seat;
  Rank rank = kNoRank;  // Not given yet.
  SeatState state = SeatState::kHeld;
  Link link = 0;
  Link newest = 0;                // Of the connections on which this process has registered.
  bool joined = false;            // It has reported once.
  wire::Ending ending;            // Of the newest process of the seat that has ended,
  std::int64_t ended_pid = 0;     // with its number,
  std::uint64_t detected_ns = 0;  // and when its agent knew.
  Instant heard{};
  std::optional<Instant> called{};  // When its silence was first noticed: it has its last call.
  std::optional<Instant> timer{};   // When it is looked at; not later than its silence counts.
  Version version = 0;              // By its own Progress.
  double loss = 0;
  bool is_free = false;  // The agent whose place it is counts as lost.
  bool is_there = true;  // Nobody has said NotThere since it was heard last.

  [[nodiscard]] bool lease_runs() const {
    return state == SeatState::kHeld || state == SeatState::kFinished;
  }
};

}  // namespace holdfast::controller
