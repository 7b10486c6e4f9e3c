// What leads a job from one wire::Stage to the next.
#pragma once

#include <cstdint>
#include <span>

#include "core/table.h"
#include "wire/formation.h"

namespace holdfast::controller {

enum class StageEvent : std::uint8_t {
  kBegun,     // A new generation.
  kPlanned,   // All have reported: it is known from which version all go on.
  kRepaired,  // All hold that version.
  kOver,      // The job has ended, well or not.
};
[[nodiscard]] const char* name(StageEvent event);
// {stage × event}; see core/table.h.
[[nodiscard]] std::span<const Transition<wire::Stage>> stage_transitions();
[[nodiscard]] wire::Stage after(wire::Stage stage, StageEvent event);

}  // namespace holdfast::controller
