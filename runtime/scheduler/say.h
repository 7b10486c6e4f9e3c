// What a scheduler says to its user.
#pragma once

#include <string_view>

namespace holdfast::runtime {

// "2030-01-31 23:59:59.123 scheduler: <text>" to stdout, in UTC. Thread-safe.
void say(std::string_view text);

}  // namespace holdfast::runtime
