// Texts and numbers as the status page has them.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::apps::web {

// For HTML, as a text or as the value of a quoted attribute. Keeps UTF-8; a control character
// becomes a space.
std::string escaped(std::string_view text);

// "1,234,567". Nothing if it is no number.
std::string grouped(double number);

// "0.42 ms", "13.9 ms", "4.2 s", "12 min", "3 h 5 min", "2 d 4 h". "-" if it is no number.
std::string duration(double seconds);

}  // namespace holdfast::apps::web
