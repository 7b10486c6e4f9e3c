// log_line(): one line for people, with the time, written at once and whole.
#pragma once

#include <string_view>

namespace holdfast::runtime {

// "2030-01-31 23:59:59.123 <who>: <text>" to stdout, in UTC. Thread-safe.
void log_line(std::string_view who, std::string_view text);

}  // namespace holdfast::runtime
