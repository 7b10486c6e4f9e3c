// One chart: a lane for each process or rank, over an axis of time.
#pragma once

#include <string>
#include <vector>

#include "apps/timeline/history.h"
#include "apps/timeline/svg.h"

namespace holdfast::apps::timeline {

constexpr double kWidth = 1240;
constexpr double kLeft = 110;    // The charts' left end; the lanes' names are beside it.
constexpr double kRight = 1210;  // The charts' right end.

const char* colour(Phase phase);
// "13.4 ms", "2.41 s".
std::string duration(std::int64_t ns);

struct Chart {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  std::int64_t zero_ns = 0;  // The time at which the axis has 0.
  bool milliseconds = false;
  double top = 0;
  double lane_height = 28;

  [[nodiscard]] double x(std::int64_t t_ns) const;  // Clamped to the chart.
  [[nodiscard]] bool shows(std::int64_t from, std::int64_t to) const {
    return to >= from_ns && from <= to_ns;
  }
};

// Draws the lanes and their axis; returns the y of the chart's lower end.
double draw_lanes(Svg& svg, const Chart& chart, const std::vector<Lane>& lanes);

}  // namespace holdfast::apps::timeline
