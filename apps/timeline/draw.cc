#include "apps/timeline/draw.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "apps/timeline/chart.h"
#include "apps/timeline/svg.h"
#include "base/text.h"
#include "base/utc.h"

namespace holdfast::apps::timeline {
namespace {

constexpr double kMargin = 24;

std::string phrase(std::size_t number, const char* one, const char* many) {
  return cat(number, ' ', number == 1 ? one : many);
}

double draw_title(Svg& svg, const History& history, std::size_t hidden) {
  svg.text(kMargin, 36, cat("Job ", history.job.empty() ? "(its name is not known)" : history.job),
           20, R"(font-weight="bold")");
  std::uint64_t lost = 0;
  for (const auto& recovery : history.recoveries) lost += recovery.steps_lost;
  const bool ends_so = !history.recoveries.empty() && !history.recoveries.back().went_on();
  svg.text(kMargin, 58,
           cat(phrase(history.ranks, "rank", "ranks"), ", ", phrase(history.steps, "step", "steps"),
               ", ", phrase(history.recoveries.size(), "recovery", "recoveries"),
               ", steps lost: ", lost, ends_so ? "; the last recovery was not completed" : ""),
           14);
  const bool traced = history.has_traces;
  std::string caption = traced ? "The first event is second 0" : "The job began at second 0";
  if (history.wall_ns > 0) {
    caption += cat(": ", utc(history.wall_ns / 1'000'000'000), " UTC by the wall clock");
  }
  caption += cat(traced ? ". The last one came " : ". It ended ",
                 duration(history.to_ns - history.from_ns), " later.");
  if (hidden > 0) caption += cat(" ", phrase(hidden, "lane is", "lanes are"), " not shown.");
  svg.text(kMargin, 76, caption, 11, R"(fill="#555")");
  return 88;
}

double draw_legend(Svg& svg, double top, bool has_traces) {
  double x = kMargin;
  const auto label = [&](std::string_view words) {
    svg.text(x + 22, top + 11, words, 11);
    x += 22 + text_width(words, 11) + 18;
  };
  const auto box = [&](std::string_view style, std::string_view words) {
    svg.rect(x, top + 1, 16, 12, style);
    label(words);
  };
  box(R"(fill="#dbe7f3" stroke="#8fb0cf" rx="2")", "process (its number)");
  box(R"(fill="#fdebc8" stroke="#d8b36a" rx="2")", "successor");
  if (has_traces) {
    box(R"(fill="#f6f6f6" stroke="#999" stroke-dasharray="3 2" rx="2")", "spare, waits");
    box(R"(fill="#0072b2" fill-opacity=".6")", "steps");
  }
  svg.cross(x + 8, top + 7, 5, "death");
  label("death");
  for (std::size_t i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (phase == Phase::kForm && !has_traces) continue;
    box(cat("fill=\"", colour(phase), '"'), name(phase));
  }
  return top + 26;
}

// Draws the phases of a recovery side by side, with their durations if there is room.
void draw_phases(Svg& svg, const Chart& chart, const Recovery& recovery, double y, double height,
                 bool labels) {
  std::int64_t from = recovery.detected_ns;
  double free_from = kLeft - 60;
  for (std::size_t i = 0; i < kPhases; ++i) {
    const std::int64_t to = recovery.ends_ns[i];
    if (to < from) continue;
    const auto phase = static_cast<Phase>(i);
    const std::string words = cat(name(phase), ' ', duration(to - from));
    if (chart.shows(from, to)) {
      const double x = chart.x(from);
      const double width = std::max(chart.x(to) - x, 0.75);
      svg.rect(x, y, width, height, cat("fill=\"", colour(phase), '"'), words);
      const double half = text_width(words, 11) / 2;
      const double middle = std::max(x + width / 2, free_from + half);
      if (labels && to > from) {
        svg.text(middle, y - 5, words, 11, R"(text-anchor="middle")");
        svg.line(x + width / 2, y, middle, y - 3, R"(stroke="#555" stroke-width=".6")");
        free_from = middle + half + 10;
      }
    }
    from = to;
  }
}

// Writes above the overview's lanes how long each recovery took, if there is room.
void draw_recoveries(Svg& svg, const Chart& chart, const std::vector<Recovery>& recoveries,
                     double bottom) {
  double free_from = 0;
  double banded_to = -1;
  for (const auto& one : recoveries) {
    const std::int64_t end = one.end_ns();
    if (!chart.shows(one.detected_ns, end)) continue;
    const double left = chart.x(one.detected_ns);
    const double right = std::max(chart.x(end), left + 1);
    if (right - banded_to < 0.5) continue;
    banded_to = right;
    svg.rect(left, chart.top, right - left, bottom - chart.top,
             R"(fill="#c8102e" fill-opacity=".16")");
    draw_phases(svg, chart, one, chart.top - 10, 8, false);
    const std::string words = one.done() ? duration(end - one.detected_ns) : "not done";
    const double half = text_width(words, 11) / 2;
    const double middle = std::clamp((left + right) / 2, kLeft + half, kRight - half);
    if (middle - half < free_from) continue;
    svg.text(middle, chart.top - 15, words, 11, R"(text-anchor="middle" font-weight="bold")");
    free_from = middle + half + 8;
  }
}

std::string heading(const Recovery& one) {
  std::string words =
      cat("Recovery ", one.number, ": ",
          one.done() ? duration(one.end_ns() - one.detected_ns) : "not done", ". ", one.cause);
  if (one.ranks.size() > 1) words += cat(", and ", one.ranks.size() - 1, " more");
  return words.substr(0, 150);
}

// Draws one recovery, zoomed. Returns the y of the panel's lower end.
double draw_panel(Svg& svg, const History& history, const Recovery& one, double top) {
  svg.text(kMargin, top + 14, heading(one), 13, R"(font-weight="bold")");
  const std::int64_t span = std::max<std::int64_t>(one.end_ns() - one.detected_ns, 1000);
  Chart chart{.from_ns = one.detected_ns - span / 8,
              .to_ns = one.end_ns() + span / 8,
              .zero_ns = one.detected_ns,
              .milliseconds = span < 2'000'000'000,
              .top = top + 54};
  std::vector<Lane> lanes;
  for (const auto& lane : history.lanes) {
    const bool lost = std::count(one.ranks.begin(), one.ranks.end(), lane.rank) > 0;
    if (lane.rank >= 0 && (lost || lanes.size() < 8)) lanes.push_back(lane);
  }
  lanes.resize(std::min<std::size_t>(lanes.size(), 16));
  if (lanes.size() > 8) chart.lane_height = 20;
  const double bottom = chart.top + chart.lane_height * static_cast<double>(lanes.size());
  std::int64_t from = one.detected_ns;
  for (std::size_t i = 0; i < kPhases; ++i) {
    const std::int64_t to = one.ends_ns[i];
    if (to < from) continue;
    svg.rect(chart.x(from), chart.top, chart.x(to) - chart.x(from), bottom - chart.top,
             cat("fill=\"", colour(static_cast<Phase>(i)), "\" fill-opacity=\".14\""));
    from = to;
  }
  draw_phases(svg, chart, one, chart.top - 12, 10, true);
  return draw_lanes(svg, chart, lanes) + 14;
}

// The longest recoveries within the chart, in the order of time.
std::vector<Recovery> longest(const History& history, const Chart& chart) {
  std::vector<Recovery> chosen;
  for (const auto& one : history.recoveries) {
    if (chart.shows(one.detected_ns, one.end_ns())) chosen.push_back(one);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const Recovery& a, const Recovery& b) {
    return a.end_ns() - a.detected_ns > b.end_ns() - b.detected_ns;
  });
  chosen.resize(std::min(chosen.size(), kMostPanels));
  std::sort(chosen.begin(), chosen.end(),
            [](const Recovery& a, const Recovery& b) { return a.detected_ns < b.detected_ns; });
  return chosen;
}

Chart overview(const History& history, const Zoom& zoom, std::size_t lanes) {
  const auto at = [&](double seconds) {
    return history.from_ns + static_cast<std::int64_t>(std::clamp(seconds, -1e6, 4e9) * 1e9);
  };
  Chart chart{.from_ns = zoom.from ? at(*zoom.from) : history.from_ns,
              .to_ns = zoom.to ? at(*zoom.to) : history.to_ns,
              .zero_ns = history.from_ns};
  chart.to_ns = std::max(chart.to_ns, chart.from_ns + 1000);
  chart.milliseconds = chart.to_ns - chart.from_ns < 2'000'000'000;
  chart.lane_height = lanes <= 16 ? 28 : lanes <= 40 ? 18 : 11;
  return chart;
}

}  // namespace

std::string draw(const History& history, const Zoom& zoom) {
  Svg svg;
  std::vector<Lane> lanes = history.lanes;
  const std::size_t hidden = lanes.size() - std::min(lanes.size(), kMostLanes);
  lanes.resize(lanes.size() - hidden);
  Chart chart = overview(history, zoom, lanes.size());
  double y = draw_title(svg, history, hidden);
  y = draw_legend(svg, y, history.has_traces);
  chart.top = y + 32;
  const double bottom = chart.top + chart.lane_height * static_cast<double>(lanes.size());
  y = draw_lanes(svg, chart, lanes) + 20;
  draw_recoveries(svg, chart, history.recoveries, bottom);
  const auto panels = longest(history, chart);
  if (panels.size() < history.recoveries.size()) {
    svg.text(kMargin, y,
             cat("Recoveries shown below (the longest in view): ", panels.size(), " of ",
                 history.recoveries.size(), ":"),
             11, R"(fill="#555")");
    y += 12;
  }
  for (const auto& one : panels) y = draw_panel(svg, history, one, y);
  return svg.finish(kWidth, y + 4, cat("Job ", history.job));
}

}  // namespace holdfast::apps::timeline
