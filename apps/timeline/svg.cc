#include "apps/timeline/svg.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"

namespace holdfast::apps::timeline {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", std::clamp(value, -1e7, 1e7));
  std::string out = text;
  out.erase(out.find_last_not_of('0') + 1);
  if (out.back() == '.') out.pop_back();
  return out == "-0" ? "0" : out;
}

double text_width(std::string_view text, double size) {
  return static_cast<double>(text.size()) * size * 0.58;
}

void Svg::rect(double x, double y, double width, double height, std::string_view style,
               std::string_view tooltip) {
  body_ += cat("<rect x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" width=\"",
               coordinate(std::max(width, 0.0)), "\" height=\"", coordinate(std::max(height, 0.0)),
               "\" ", style);
  body_ += tooltip.empty() ? "/>\n" : cat("><title>", escaped(tooltip), "</title></rect>\n");
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view style) {
  body_ += cat("<line x1=\"", coordinate(x1), "\" y1=\"", coordinate(y1), "\" x2=\"",
               coordinate(x2), "\" y2=\"", coordinate(y2), "\" ", style, "/>\n");
}

void Svg::path(std::string_view commands, std::string_view style) {
  if (!commands.empty()) body_ += cat("<path d=\"", commands, "\" ", style, "/>\n");
}

void Svg::cross(double x, double y, double radius, std::string_view tooltip) {
  const auto at = [](double a, double b) { return cat(coordinate(a), ' ', coordinate(b)); };
  const std::string lines = cat('M', at(x - radius, y - radius), 'L', at(x + radius, y + radius),
                                'M', at(x - radius, y + radius), 'L', at(x + radius, y - radius));
  body_ += cat("<g fill=\"none\" stroke-linecap=\"round\"><title>", escaped(tooltip),
               "</title><path d=\"", lines, "\" stroke=\"#fff\" stroke-width=\"5\"/><path d=\"",
               lines, "\" stroke=\"#c8102e\" stroke-width=\"2.5\"/></g>\n");
}

void Svg::text(double x, double y, std::string_view words, double size, std::string_view style) {
  body_ += cat("<text x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" font-size=\"",
               coordinate(size), "\" ", style, ">", escaped(words), "</text>\n");
}

std::string Svg::finish(double width, double height, std::string_view title) const {
  const std::string w = coordinate(width);
  const std::string h = coordinate(height);
  return cat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
      w, "\" height=\"", h, "\" viewBox=\"0 0 ", w, ' ', h,
      "\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" fill=\"#222\">\n<title>",
      escaped(title), "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n", body_,
      "</svg>\n");
}

std::string Svg::within_page(double width, double height, std::string_view title,
                             std::string_view name) const {
  return cat("<svg class=\"", name, "\" viewBox=\"0 0 ", coordinate(width), ' ', coordinate(height),
             "\" role=\"img\" aria-label=\"", escaped(title), "\">\n", body_, "</svg>\n");
}

}  // namespace holdfast::apps::timeline
