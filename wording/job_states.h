// What a whole job does, in the words of its status. The metrics have one line for each of them.
#pragma once

#include <array>

namespace holdfast::wording {

inline constexpr const char* kAssembling = "waiting for workers";
inline constexpr const char* kRunning = "running";
inline constexpr const char* kStandingStill = "standing still";
inline constexpr const char* kStopping = "stopping for a recovery";
inline constexpr const char* kRepairing = "repairing";
inline constexpr const char* kRecovering = "recovering";
inline constexpr const char* kPausing = "pausing";
inline constexpr const char* kPaused = "paused";
inline constexpr const char* kEnded = "ended";

inline constexpr std::array kJobStates{kAssembling, kRunning, kStandingStill, kStopping, kRepairing,
                                       kRecovering, kPausing, kPaused,        kEnded};

}  // namespace holdfast::wording
