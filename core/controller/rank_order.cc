#include "core/controller/rank_order.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <utility>

namespace holdfast::controller {
namespace {

std::optional<std::int32_t> whole_number(const std::string& text) {
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// "worker-2" before "worker-10": runs of digits compare as numbers.
bool naturally_before(const std::string& a, const std::string& b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const auto run_end = [](const std::string& text, std::size_t at) {
      while (at < text.size() && is_digit(text[at])) ++at;
      return at;
    };
    const auto number = [](const std::string& text, std::size_t from, std::size_t to) {
      while (from + 1 < to && text[from] == '0') ++from;
      return text.substr(from, to - from);
    };
    const auto a_end = run_end(a, i);
    const auto b_end = run_end(b, j);
    const auto a_number = number(a, i, a_end);
    const auto b_number = number(b, j, b_end);
    if (a_number.size() != b_number.size()) return a_number.size() < b_number.size();
    if (a_number != b_number) return a_number < b_number;
    i = a_end;
    j = b_end;
  }
  return a.size() - i < b.size() - j || (a.size() - i == b.size() - j && a < b);
}

}  // namespace

std::optional<std::string> same_number(const std::map<std::string, Member>& members,
                                       const std::string& node_id) {
  constexpr std::size_t kMaxDigits = 9;
  const auto number = whole_number(node_id);
  if (!number) return std::nullopt;
  const std::string digits = std::to_string(*number);
  for (std::size_t zeros = 0; digits.size() + zeros <= kMaxDigits; ++zeros) {
    std::string text(zeros, '0');
    text += digits;
    if (text != node_id && members.contains(text)) return text;
  }
  return std::nullopt;
}

std::vector<std::string> in_rank_order(const std::map<std::string, Member>& members) {
  std::vector<std::string> by_number(members.size());
  bool numbered = true;
  for (const auto& [node_id, member] : members) {
    const auto number = whole_number(node_id);
    numbered = numbered && number && static_cast<std::size_t>(*number) < by_number.size() &&
               by_number[static_cast<std::size_t>(*number)].empty();
    if (numbered) by_number[static_cast<std::size_t>(*number)] = node_id;
  }
  if (numbered) return by_number;
  std::vector<std::pair<std::string, std::string>> nodes;
  for (const auto& [node_id, member] : members) nodes.emplace_back(member.seat.host, node_id);
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : naturally_before(a.second, b.second);
  });
  std::vector<std::string> order;
  for (auto& node : nodes) order.push_back(std::move(node.second));
  return order;
}

}  // namespace holdfast::controller
