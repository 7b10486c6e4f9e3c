#include "apps/web/text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "base/text.h"

namespace holdfast::apps::web {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
    }
  }
  return out;
}

std::string grouped(double number) {
  if (std::isnan(number)) return {};
  const auto digits = cat(static_cast<std::int64_t>(std::clamp(std::abs(number), 0.0, 9e18)));
  std::string text = number <= -1 ? "-" : "";
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string duration(double seconds) {
  if (std::isnan(seconds)) return "-";
  const double ms = std::clamp(seconds, 0.0, 1e12) * 1000;
  char text[48];
  if (ms < 9.995) {
    std::snprintf(text, sizeof text, "%.2f ms", ms);
  } else if (ms < 999.5) {
    std::snprintf(text, sizeof text, ms < 99.95 ? "%.1f ms" : "%.0f ms", ms);
  } else if (ms < 119'500) {
    std::snprintf(text, sizeof text, ms < 9'950 ? "%.1f s" : "%.0f s", ms / 1000);
  } else {
    const auto minutes = static_cast<std::int64_t>(ms / 60'000);
    const auto hours = minutes / 60;
    if (hours == 0) return cat(minutes, " min");
    return hours < 48 ? cat(hours, " h ", minutes % 60, " min")
                      : cat(hours / 24, " d ", hours % 24, " h");
  }
  return text;
}

}  // namespace holdfast::apps::web
