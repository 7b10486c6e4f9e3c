// Reads a text that is one number and nothing else.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace holdfast {

// False: the text is no such number, or it does not fit. Then `number` may have been changed.
template <class Number>
[[nodiscard]] bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

// The number that the text is: 0, 7, 007. nullopt: it is no whole number from 0 on.
[[nodiscard]] inline std::optional<std::int32_t> whole_number(std::string_view text) {
  std::int32_t number = 0;
  return read_number(text, number) && number >= 0 ? std::optional(number) : std::nullopt;
}

}  // namespace holdfast
