// cat(a, b, ...): builds a sentence from strings and whole numbers; ordinal(4): "4th";
// counted(1, "worker"): "1 worker"; all_of(4, "worker"): "all 4 workers";
// host_and_port(host, port): the address of a listener; endpoint_in(text): parses such an address;
// is_plain_name(text); edit_distance(a, b): how alike two names are.
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast {

inline void append(std::string& out, std::string_view text) {
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

// "1st", "2nd", "3rd", "4th", "11th", ...
[[nodiscard]] inline std::string ordinal(std::uint64_t number) {
  const auto last = number % 100 / 10 == 1 ? 0 : number % 10;
  return cat(number, last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th");
}

// "1 worker", "4 workers".
[[nodiscard]] inline std::string counted(std::int64_t number, std::string_view what) {
  return cat(number, ' ', what, number == 1 ? "" : "s");
}

// "the one worker", "all 4 workers".
[[nodiscard]] inline std::string all_of(std::int64_t number, std::string_view what) {
  return number == 1 ? cat("the one ", what) : cat("all ", counted(number, what));
}

// Replaces every byte that is not printable ASCII by '?', so that the text of a peer or a file is
// safe for a terminal and for XML. This includes each byte of a UTF-8 letter, which may have been
// cut in two.
[[nodiscard]] inline std::string printable(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

// "host:8118". An IPv6 address gets brackets, since its own colons would hide the port:
// "[::1]:8118".
[[nodiscard]] inline std::string host_and_port(std::string_view host, std::uint16_t port) {
  const bool needs_brackets = host.find(':') != std::string_view::npos && host.front() != '[';
  return needs_brackets ? cat('[', host, "]:", port) : cat(host, ':', port);
}

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
};

// Parses what host_and_port() writes. nullopt: the text is no such address, or the port is 0.
[[nodiscard]] inline std::optional<Endpoint> endpoint_in(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  Endpoint found{.host = std::string(host)};
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, found.port);
  if (host.empty() || error != std::errc() || rest != end || found.port == 0) return std::nullopt;
  return found;
}

// Whether the text is safe as a file name: 1 to 100 letters, digits, '.', '_' and '-', and no '.'
// first.
[[nodiscard]] inline bool is_plain_name(std::string_view text) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !text.empty() && text.size() <= 100 && text.front() != '.' &&
         text.find_first_not_of(kAllowed) == std::string_view::npos;
}

// Levenshtein distance: how many bytes must be changed, added or removed to turn `a` into `b`.
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace holdfast
