// Draws a history: an overview, and below it the longest recoveries, each zoomed. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "apps/timeline/history.h"

namespace holdfast::apps::timeline {

constexpr std::size_t kMostPanels = 8;
constexpr std::size_t kMostLanes = 128;  // In one picture.

// Seconds since the job's first event.
struct Zoom {
  std::optional<double> from;
  std::optional<double> to;
};

std::string draw(const History& history, const Zoom& zoom);

}  // namespace holdfast::apps::timeline
