// Words of snapshots.
#pragma once

#include <string>
#include <string_view>

#include "wire/reason.h"

namespace holdfast::wording {

// The sentence of a reason that is about a snapshot. Empty for all others.
[[nodiscard]] std::string of_snapshot(const wire::Reason& reason);

// A program and its arguments, which end with a line each, as one line that is safe to print.
[[nodiscard]] std::string command_line(std::string_view program);

// In which words two such programs differ: "`--lr 2` was `--lr 1`". Empty: in none.
[[nodiscard]] std::string change_of_program(std::string_view was, std::string_view now);

}  // namespace holdfast::wording
