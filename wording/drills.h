// Words of drills: what people write on the command line, and what they are told.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "wire/messages.h"
#include "wire/reason.h"

namespace holdfast::wording {

inline constexpr std::array<std::pair<std::string_view, wire::DrillKind>, 8> kDrillKinds = {{
    {"kill", wire::DrillKind::kKill},
    {"stop", wire::DrillKind::kStop},
    {"hang", wire::DrillKind::kHang},
    {"spin", wire::DrillKind::kSpin},
    {"slow", wire::DrillKind::kSlow},
    {"page", wire::DrillKind::kPage},
    {"flip", wire::DrillKind::kFlip},
    {"cut", wire::DrillKind::kCut},
}};

// The phases of a training in which a drill may come.
inline constexpr std::array<std::pair<std::string_view, Doing>, 8> kDrillPhases = {{
    {"between", Doing::kBetween},
    {"compute", Doing::kComputing},
    {"sum", Doing::kSumming},
    {"stage", Doing::kStaging},
    {"copy", Doing::kCopying},
    {"commit", Doing::kCommitting},
    {"update", Doing::kUpdating},
    {"recovery", Doing::kRecovering},
}};

// The sentence of a reason that an observer who asks for a drill is told. Empty for all others.
[[nodiscard]] std::string of_drill(const wire::Reason& reason);

}  // namespace holdfast::wording
