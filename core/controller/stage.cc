#include "core/controller/stage.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/assert.h"

namespace holdfast::controller {

using wire::Stage;

namespace {

constexpr std::size_t index(StageEvent event) {
  return static_cast<std::size_t>(event);
}

constexpr Transition<Stage> kStageTransitions[] = {
    {Stage::kAssembling, index(StageEvent::kBegun), Stage::kStopping, "all processes have come"},
    {Stage::kStopping, index(StageEvent::kBegun), Stage::kStopping, "another scheduler goes on"},
    {Stage::kStopping, index(StageEvent::kPlanned), Stage::kRepairing},
    {Stage::kRepairing, index(StageEvent::kBegun), Stage::kStopping,
     "a rank is lost or came back, or another scheduler goes on"},
    {Stage::kRepairing, index(StageEvent::kRepaired), Stage::kRunning},
    {Stage::kRunning, index(StageEvent::kBegun), Stage::kStopping,
     "a rank is lost or came back, or a group is lost"},
    {Stage::kAssembling, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kStopping, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kRepairing, index(StageEvent::kOver), Stage::kEnded},
    {Stage::kRunning, index(StageEvent::kOver), Stage::kEnded},
};

}  // namespace

std::span<const Transition<Stage>> stage_transitions() {
  return kStageTransitions;
}

const char* name(StageEvent event) {
  constexpr const char* kNames[] = {"generation begun", "planned", "repaired", "over"};
  return kNames[index(event)];
}

Stage after(Stage stage, StageEvent event) {
  const auto* row =
      std::find_if(std::begin(kStageTransitions), std::end(kStageTransitions),
                   [&](const auto& t) { return t.from == stage && t.event == index(event); });
  HF_ASSERT(row != std::end(kStageTransitions));
  return row->to;
}

}  // namespace holdfast::controller
