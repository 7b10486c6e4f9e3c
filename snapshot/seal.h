// Seal: a digest at the end of a text, by which each byte of both is known to be right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/number.h"
#include "base/text.h"

namespace holdfast::snapshot {

struct Seal {
  std::string_view before;  // What stands before the digest.
  std::string_view after;

  [[nodiscard]] std::size_t size() const { return before.size() + 16 + after.size(); }
  [[nodiscard]] std::string of(std::uint64_t digest_of_text) const {
    return cat(before, hex(digest_of_text), after);
  }
  [[nodiscard]] std::string of(std::string_view text) const {
    return of(digest(std::as_bytes(std::span(text))));
  }
  // The digest with which a text is sealed. nullopt: a byte of it is wrong.
  [[nodiscard]] std::optional<std::uint64_t> check(std::string_view sealed) const {
    if (sealed.size() < size()) return std::nullopt;
    const std::string_view text = sealed.substr(0, sealed.size() - size());
    const std::uint64_t found = digest(std::as_bytes(std::span(text)));
    return sealed.ends_with(of(found)) ? std::optional(found) : std::nullopt;
  }
};

}  // namespace holdfast::snapshot
