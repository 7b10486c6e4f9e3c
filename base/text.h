// cat(a, b, ...): builds a sentence from strings and whole numbers.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace holdfast {

inline void append(std::string& out, std::string_view text) {
  out += text;
}
inline void append(std::string& out, const char* text) {
  out += text;
}
inline void append(std::string& out, char c) {
  out += c;
}
template <std::integral T>
requires(!std::same_as<T, char> && !std::same_as<T, bool>) void append(std::string& out, T number) {
  out += std::to_string(number);
}

template <class... Args>
[[nodiscard]] std::string cat(const Args&... args) {
  std::string out;
  (append(out, args), ...);
  return out;
}

}  // namespace holdfast
