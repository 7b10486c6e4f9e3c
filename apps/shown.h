// shown(text): text of a file or a path, for a terminal.
#pragma once

#include <string>

namespace holdfast::apps {

// Without what a terminal would take for an order. Keeps UTF-8.
inline std::string shown(std::string text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_c1 = byte >= 0x80 && byte < 0xa0 && i > 0 && text[i - 1] == '\xc2';
    if (byte < ' ' || byte == 0x7f || is_c1) text[i] = '?';
  }
  return text;
}

}  // namespace holdfast::apps
