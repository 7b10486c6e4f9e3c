// Readers of JSON from files and answers, in which any value may be missing or of another type.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace holdfast::apps {

using Json = nlohmann::json;

// A string as it is, a number or a truth value as JSON has it. Anything else is `otherwise`.
inline std::string text_of(const Json& json, const char* key, const char* otherwise = "") {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return otherwise;
  if (found->is_string()) return found->get<std::string>();
  return found->is_primitive() ? found->dump() : otherwise;
}

inline std::optional<double> number_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// A number as printf has it; `otherwise` if there is none.
inline std::string number_of(const Json& json, const char* key, const char* format,
                             const char* otherwise = "") {
  const auto number = number_of(json, key);
  if (!number) return otherwise;
  char text[64];
  std::snprintf(text, sizeof text, format, *number);
  return text;
}

// An empty list if there is none.
inline const Json& list_of(const Json& json, const char* key) {
  static const Json kNone = Json::array();
  const auto found = json.find(key);
  return found != json.end() && found->is_array() ? *found : kNone;
}

// The objects of a file with one in each line. Other lines are left out.
inline std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    auto json = Json::parse(line, nullptr, false);
    if (json.is_object()) all.push_back(std::move(json));
  }
  return all;
}

}  // namespace holdfast::apps
