// An environment as a list of NAME=value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace holdfast::runtime {

// Empty where the variable is not set.
[[nodiscard]] std::string value_of(const std::vector<std::string>& environment,
                                   std::string_view name);
void unset(std::vector<std::string>& environment, std::string_view name);
void set(std::vector<std::string>& environment, std::string_view name, std::string_view value);

}  // namespace holdfast::runtime
