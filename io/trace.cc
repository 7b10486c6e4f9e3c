#include "io/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "io/loop.h"
#include "os/errors.h"
#include "os/files.h"

namespace holdfast::io {
namespace {

// The length of the UTF-8 character that `text` begins with, or 0 where it begins with none (RFC
// 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<std::uint8_t>(text[i]) : std::uint8_t{0};
  };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  const std::uint8_t lowest = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const std::uint8_t highest = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < lowest || byte(1) > highest) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
  }
  return length;
}

void append_escaped(std::string& out, char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  const auto code = static_cast<std::uint8_t>(c);
  if (code >= 0x20) {
    out += c;
  } else {
    out += "\\u00";
    out += kDigits[code >> 4U];
    out += kDigits[code & 15U];
  }
}

void append_value(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}
void append_value(std::string& out, bool value) {
  out += value ? "true" : "false";
}
void append_value(std::string& out, std::string_view value) {
  out += json_string(value);
}
template <std::integral T>
requires(!std::same_as<T, bool>) void append_value(std::string& out, T value) {
  out += std::to_string(value);
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (length == 1) {
      append_escaped(out, text[0]);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

Result<Trace> Trace::open_from(const std::string& directory, const std::string& role) {
  if (directory.empty()) return Trace();
  if (auto made = os::make_directories(directory); !made) return made.error();
  const std::string path = cat(directory, '/', role, '-', ::getpid(), ".jsonl");
  os::Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file) return os::system_error(cat("cannot open the trace ", path), errno);
  Trace trace;
  trace.file_ = std::make_shared<const os::Fd>(std::move(file));
  return trace;
}

void Trace::write(std::string_view name, std::initializer_list<Field> fields) const {
  std::string line = cat("{\"t_ns\":", Loop::now().count(), ",\"event\":", json_string(name),
                         ",\"pid\":", ::getpid());
  for (const auto& field : fields) {
    line += ',';
    line += json_string(field.name);
    line += ':';
    std::visit([&](const auto& value) { append_value(line, value); }, field.value);
  }
  line += "}\n";
  (void)!::write(file_->get(), line.data(), line.size());
}

}  // namespace holdfast::io
