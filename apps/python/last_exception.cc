// last_exception(): see launcher.h.
#include "apps/python/launcher.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

namespace holdfast::apps {
namespace {

constexpr std::size_t kLongest = 300;
constexpr std::array<std::string_view, 3> kOfOthers = {
    "holdfast._errors.MarkedError", "holdfast._errors.LeftError", "holdfast._errors.WorldError"};

// PyTorch puts "[rank3]: " before each line.
std::string_view without_rank(std::string_view line) {
  constexpr std::string_view kBegin = "[rank";
  const auto end = line.find("]: ");
  return line.starts_with(kBegin) && end != std::string_view::npos ? line.substr(end + 3) : line;
}

std::vector<std::string_view> lines_of(std::string_view words) {
  std::vector<std::string_view> lines;
  while (!words.empty()) {
    const auto end = words.find('\n');
    lines.push_back(without_rank(words.substr(0, end)));
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 1);
  }
  return lines;
}

bool is_indented(std::string_view line) {
  return line.empty() || line.starts_with(' ');
}

// "ValueError", "ValueError: no data", "package.module.Error: ..."
bool names_exception(std::string_view line) {
  const auto name = line.substr(0, line.find(':'));
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

std::string without_addresses(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (!out.ends_with("0x")) continue;
    while (i + 1 < text.size() && std::isxdigit(static_cast<unsigned char>(text[i + 1])) != 0) ++i;
  }
  return out;
}

}  // namespace

std::string last_exception(std::string_view words) {
  const auto lines = lines_of(words);
  // The lines of a traceback are indented, up to the one that names the exception. After a syntax
  // error it has no headline "Traceback".
  const auto begins = [](std::string_view line) {
    return line.starts_with("Traceback (most recent call last):") || line.starts_with("  File \"");
  };
  const auto last = std::find_if(lines.rbegin(), lines.rend(), begins);
  if (last == lines.rend()) return {};
  const auto named =
      std::find_if_not(last.base(), lines.end(), [](auto line) { return is_indented(line); });
  if (named == lines.end() || !names_exception(*named)) return {};
  std::string text = without_addresses(named->substr(0, kLongest));
  const auto more = std::find_if(named + 1, lines.end(), [](auto line) { return !line.empty(); });
  if (text.ends_with(": ") && more != lines.end()) {
    text += without_addresses(more->substr(0, kLongest));
  }
  const bool of_others = std::any_of(kOfOthers.begin(), kOfOthers.end(),
                                     [&](auto name) { return text.starts_with(name); });
  return of_others ? std::string() : text;
}

}  // namespace holdfast::apps
