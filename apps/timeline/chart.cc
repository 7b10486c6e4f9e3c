#include "apps/timeline/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/text.h"

namespace holdfast::apps::timeline {
namespace {

constexpr double kBin = 2;               // Steps are counted over this many pixels.
constexpr std::size_t kMostTicks = 200;  // With more steps, a bar has shades in place of ticks.

// The tooltip of a process's bar.
std::string about(const Lane& lane, const Bar& bar, std::int64_t zero_ns) {
  std::string text =
      cat(lane.name, ", process ", bar.pid, bar.waits ? ", waits as a spare: " : ": ",
          duration(bar.from_ns - zero_ns), " to ", duration(bar.to_ns - zero_ns));
  if (!bar.death.empty()) text += "; " + bar.death;
  return text;
}

using StepAt = std::vector<Step>::const_iterator;

void draw_shades(Svg& svg, const Chart& chart, double y, double height, StepAt from, StepAt to) {
  std::vector<double> bins(static_cast<std::size_t>((kRight - kLeft) / kBin) + 1);
  for (auto step = from; step != to; ++step) {
    bins[static_cast<std::size_t>((chart.x(step->t_ns) - kLeft) / kBin)] += 1;
  }
  const double most = *std::max_element(bins.begin(), bins.end());
  const auto shade = [&](std::size_t bin) {
    return bins[bin] == 0 ? 0 : 1 + std::min(static_cast<int>(bins[bin] / most * 3), 2);
  };
  std::array<std::string, 4> paths;
  for (std::size_t bin = 0; bin < bins.size();) {
    std::size_t end = bin + 1;
    while (end < bins.size() && shade(end) == shade(bin)) ++end;
    const double width = static_cast<double>(end - bin) * kBin;
    paths[static_cast<std::size_t>(shade(bin))] +=
        cat('M', coordinate(kLeft + static_cast<double>(bin) * kBin), ' ', coordinate(y), 'h',
            coordinate(width), 'v', coordinate(height), 'h', coordinate(-width), 'z');
    bin = end;
  }
  svg.path(paths[1], R"(fill="#0072b2" fill-opacity=".35")");
  svg.path(paths[2], R"(fill="#0072b2" fill-opacity=".6")");
  svg.path(paths[3], R"(fill="#0072b2" fill-opacity=".85")");
}

void draw_steps(Svg& svg, const Chart& chart, const Bar& bar, double y, double height) {
  if (bar.file == nullptr || bar.waits) return;
  const auto& steps = bar.file->steps;
  const auto before = [](const Step& step, std::int64_t t) { return step.t_ns < t; };
  const auto from = std::lower_bound(steps.begin(), steps.end(), chart.from_ns, before);
  const auto to = std::lower_bound(from, steps.end(), chart.to_ns, before);
  if (from == to) return;
  if (static_cast<std::size_t>(to - from) > kMostTicks) {
    return draw_shades(svg, chart, y, height, from, to);
  }
  std::string ticks;
  for (auto step = from; step != to; ++step) {
    ticks += cat('M', coordinate(chart.x(step->t_ns)), ' ', coordinate(y), 'v', coordinate(height));
  }
  svg.path(ticks, R"(fill="none" stroke="#0072b2" stroke-width="1.2")");
}

void draw_bar(Svg& svg, const Chart& chart, const Lane& lane, const Bar& bar, std::size_t number,
              double y) {
  const double left = chart.x(bar.from_ns);
  const double width = std::max(chart.x(bar.to_ns) - left, 1.0);
  const double height = chart.lane_height - 6;
  const char* style = bar.waits ? R"(fill="#f6f6f6" stroke="#999" stroke-dasharray="3 2" rx="2")"
                      : number % 2 == 0 ? R"(fill="#dbe7f3" stroke="#8fb0cf" rx="2")"
                                        : R"(fill="#fdebc8" stroke="#d8b36a" rx="2")";
  svg.rect(left, y + 3, width, height, style, about(lane, bar, chart.zero_ns));
  draw_steps(svg, chart, bar, y + 3 + height * 0.62, height * 0.3);
  const std::string pid = cat(bar.pid);
  if (chart.lane_height >= 20 && width > text_width(pid, 10) + 8) {
    svg.text(left + 5, y + 14, pid, 10, R"(fill="#445")");
  }
}

// Draws a death; and its cause, if no other text is in the way.
void draw_death(Svg& svg, const Chart& chart, const Lane& lane, const Bar& bar, double y,
                double& free_from) {
  if (bar.death.empty() || !chart.shows(bar.to_ns, bar.to_ns)) return;
  const double x = chart.x(bar.to_ns);
  const bool high = chart.lane_height >= 20;
  svg.cross(x, y + chart.lane_height / 2, high ? 5 : 2.5, about(lane, bar, chart.zero_ns));
  const std::string label = short_death(bar.death);
  const double width = text_width(label, 10);
  const double pid_end = chart.x(bar.from_ns) + text_width(cat(bar.pid), 10) + 8;
  if (!high || x - 9 - width < std::max(free_from, pid_end)) return;
  svg.text(x - 9, y + 14, label, 10, R"(text-anchor="end" font-weight="bold" fill="#a00d25")");
  free_from = x + 8;
}

double step_of_axis(double span) {
  const double rough = span / 10;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

void draw_axis(Svg& svg, const Chart& chart, double bottom) {
  const double unit = chart.milliseconds ? 1e6 : 1e9;
  const double from = static_cast<double>(chart.from_ns - chart.zero_ns) / unit;
  const double to = static_cast<double>(chart.to_ns - chart.zero_ns) / unit;
  const double step = step_of_axis(to - from);
  // Each mark is computed from an integer. Adding up steps would add up rounding errors.
  const double first = std::ceil(from / step - 1e-9);
  for (int i = 0; i <= 12 && (first + i) * step <= to + step * 1e-9; ++i) {
    const double value = (first + i) * step;
    const double x = kLeft + (value - from) / (to - from) * (kRight - kLeft);
    svg.line(x, chart.top, x, bottom + 4, R"(stroke="#bbb" stroke-width=".6")");
    char text[40];
    std::snprintf(text, sizeof text, "%.10g", std::abs(value) < step / 2 ? 0.0 : value);
    svg.text(x, bottom + 17, cat(text, chart.milliseconds ? " ms" : " s"), 10.5,
             R"(text-anchor="middle" fill="#555")");
  }
}

}  // namespace

const char* colour(Phase phase) {
  // Okabe and Ito's colours, which the colour-blind tell apart too.
  constexpr std::array<const char*, kPhases> kColours = {"#999999", "#e69f00", "#56b4e9", "#cc79a7",
                                                         "#009e73"};
  return kColours[static_cast<std::size_t>(phase)];
}

std::string duration(std::int64_t ns) {
  char text[40];
  const double ms = static_cast<double>(ns) / 1e6;
  std::snprintf(text, sizeof text, ms < 1000 ? "%.1f ms" : "%.2f s", ms < 1000 ? ms : ms / 1000);
  return text;
}

double Chart::x(std::int64_t t_ns) const {
  const double share = static_cast<double>(t_ns - from_ns) / static_cast<double>(to_ns - from_ns);
  return kLeft + std::clamp(share, 0.0, 1.0) * (kRight - kLeft);
}

double draw_lanes(Svg& svg, const Chart& chart, const std::vector<Lane>& lanes) {
  const double bottom = chart.top + chart.lane_height * static_cast<double>(lanes.size());
  draw_axis(svg, chart, bottom);
  double y = chart.top;
  for (const auto& lane : lanes) {
    svg.text(kLeft - 10, y + chart.lane_height / 2 + 4, lane.name.substr(0, 16),
             std::min(12.0, chart.lane_height - 1), R"(text-anchor="end")");
    double drawn_to = -1;  // Bars of less than a pixel hide each other: they are not all drawn.
    for (std::size_t i = 0; i < lane.bars.size(); ++i) {
      const auto& bar = lane.bars[i];
      if (!chart.shows(bar.from_ns, bar.to_ns) || chart.x(bar.to_ns) - drawn_to < 0.5) continue;
      drawn_to = chart.x(bar.to_ns);
      draw_bar(svg, chart, lane, bar, i, y);
    }
    double free_from = 0;
    double marked_to = -1;
    for (const auto& bar : lane.bars) {
      if (bar.death.empty() || chart.x(bar.to_ns) - marked_to < 1) continue;
      marked_to = chart.x(bar.to_ns);
      draw_death(svg, chart, lane, bar, y, free_from);
    }
    y += chart.lane_height;
  }
  svg.line(kLeft, bottom, kRight, bottom, R"(stroke="#888")");
  return bottom + 22;
}

}  // namespace holdfast::apps::timeline
