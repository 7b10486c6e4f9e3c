#include "apps/web/charts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "apps/timeline/svg.h"
#include "apps/web/text.h"
#include "base/text.h"

namespace holdfast::apps::web {
namespace {

using timeline::coordinate;

constexpr double kWidth = 640;
constexpr double kHeight = 190;
constexpr double kLeft = 62;
constexpr double kRight = 14;
constexpr double kTop = 10;
constexpr double kBottom = 26;
constexpr double kFont = 12;

struct Range {
  double from = 0;
  double to = 0;

  [[nodiscard]] double share(double value) const { return (value - from) / (to - from); }
};

// Round numbers within a range, about four of them.
std::vector<double> ticks_of(const Range& range) {
  const double rough = (range.to - range.from) / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough < 1.5 * power   ? 1
                               : rough < 3.5 * power ? 2
                               : rough < 7.5 * power ? 5
                                                     : 10);
  std::vector<double> ticks;
  for (double tick = std::ceil(range.from / step) * step; tick <= range.to && ticks.size() < 12;
       tick += step) {
    ticks.push_back(std::abs(tick) < step / 1000 ? 0 : tick);
  }
  return ticks;
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

struct Axes {
  const char* label;  // What the picture shows, for who does not see it.
  const char* line;   // The class of the line.
  std::function<double(const Point&)> x;
  std::function<double(const Point&)> y;
  std::function<std::string(double)> name_x;
  bool from_zero = false;
};

std::vector<std::pair<double, double>> places_of(const std::vector<Point>& points,
                                                 const Axes& axes) {
  std::vector<std::pair<double, double>> places;
  for (const auto& point : points) {
    const double y = axes.y(point);
    if (std::isfinite(y)) places.emplace_back(axes.x(point), y);
  }
  return places;
}

Range range_of(const std::vector<std::pair<double, double>>& places,
               double std::pair<double, double>::*axis) {
  Range range{places.front().*axis, places.front().*axis};
  for (const auto& place : places) {
    range.from = std::min(range.from, place.*axis);
    range.to = std::max(range.to, place.*axis);
  }
  return range;
}

std::string draw(const std::vector<Point>& points, const Axes& axes,
                 const std::vector<double>& marks) {
  const auto places = places_of(points, axes);
  if (places.size() < 2) return {};
  const Range x = range_of(places, &std::pair<double, double>::first);
  Range y = range_of(places, &std::pair<double, double>::second);
  if (!(x.to > x.from)) return {};
  if (axes.from_zero) y.from = 0;
  const double room = y.to > y.from ? (y.to - y.from) * 0.06 : std::max(std::abs(y.to), 1.0) * 0.1;
  y = {axes.from_zero ? 0 : y.from - room, y.to + room};
  const auto at_x = [&](double value) {
    return kLeft + x.share(value) * (kWidth - kLeft - kRight);
  };
  const auto at_y = [&](double value) {
    return kHeight - kBottom - y.share(value) * (kHeight - kTop - kBottom);
  };
  timeline::Svg svg;
  for (const double tick : ticks_of(y)) {
    svg.line(kLeft, at_y(tick), kWidth - kRight, at_y(tick), R"(class="grid")");
    svg.text(kLeft - 8, at_y(tick) + 4, short_number(tick), kFont, R"(text-anchor="end")");
  }
  for (const double tick : ticks_of(x)) {
    svg.text(at_x(tick), kHeight - 7, axes.name_x(tick), kFont, R"(text-anchor="middle")");
  }
  for (const double mark : marks) {
    if (mark < x.from || mark > x.to) continue;
    svg.line(at_x(mark), kTop, at_x(mark), kHeight - kBottom, R"(class="mark")");
  }
  std::string path;
  for (const auto& [px, py] : places) {
    path += cat(path.empty() ? 'M' : 'L', coordinate(at_x(px)), ' ', coordinate(at_y(py)));
  }
  svg.path(path, cat("class=\"line ", axes.line, "\""));
  return svg.within_page(kWidth, kHeight, axes.label, "chart");
}

}  // namespace

std::string loss_chart(const Record& record) {
  std::vector<double> marks;
  for (const auto& report : list_of(record.status(), "recovery_reports")) {
    marks.push_back(number_of(report, "version").value_or(kNone));
  }
  return draw(record.points(),
              {"The loss over the steps", "loss", [](const Point& p) { return p.step; },
               [](const Point& p) { return p.loss; }, grouped},
              marks);
}

std::string speed_chart(const Record& record) {
  if (record.points().empty()) return {};
  const Seconds end = record.points().back().at;
  return draw(record.points(),
              {"Steps per second over time", "speed", [&](const Point& p) { return p.at - end; },
               [](const Point& p) { return p.steps_per_s; },
               [](double ago) { return ago > -0.5 ? "now" : cat('-', duration(-ago)); }, true},
              {});
}

std::string recovery_bar(const Json& report, double whole) {
  constexpr double kBar = 320;
  constexpr double kThick = 16;
  timeline::Svg svg;
  const auto phases = phases_of(report);
  double x = 0;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    if (std::isnan(phases.at(i)) || !(whole > 0)) continue;
    const double width = std::max(phases.at(i) / whole * (kBar - 8), 1.5);
    svg.rect(x, 0, width, kThick, cat("class=\"phase", i, "\""),
             cat(kPhases.at(i).name, ": ", duration(phases.at(i))));
    x += width;
  }
  return svg.within_page(kBar, kThick, "The phases of the recovery", "bar");
}

}  // namespace holdfast::apps::web
