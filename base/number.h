// Reads a text that is one number and nothing else.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace holdfast {

// False: the text is no such number, or it does not fit. Then `number` may have been changed.
template <class Number>
[[nodiscard]] bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace holdfast
