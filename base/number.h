// Reads a text that is one number and nothing else; hex(number): 16 digits, and back.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
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

// The 16 digits of a number: "00000000000000ff".
[[nodiscard]] inline std::string hex(std::uint64_t number) {
  std::string digits(16, '0');
  for (auto digit = digits.rbegin(); number != 0; ++digit, number >>= 4) {
    *digit = "0123456789abcdef"[number & 0xfU];
  }
  return digits;
}

// The number of which hex() makes this text. nullopt: of none.
[[nodiscard]] inline std::optional<std::uint64_t> number_of_hex(std::string_view text) {
  std::uint64_t number = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return hex(number) == text ? std::optional(number) : std::nullopt;
}

}  // namespace holdfast
