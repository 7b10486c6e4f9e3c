// utc(seconds): a time for people, "2026-01-31 23:59:59".
#pragma once

#include <ctime>
#include <string>

namespace holdfast {

// `unix_seconds`: since 1970. "?": the year would have more digits than an int.
[[nodiscard]] inline std::string utc(std::time_t unix_seconds) {
  std::tm parts{};
  char text[40];
  const bool is_time = ::gmtime_r(&unix_seconds, &parts) != nullptr &&
                       std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts) != 0;
  return is_time ? text : "?";
}

}  // namespace holdfast
