// Variables of MindSpore's that mean nothing here.
#pragma once

#include <string>
#include <vector>

namespace holdfast::config {

// A sentence for each that is set: that it has no effect, and what holds in its place.
[[nodiscard]] std::vector<std::string> without_effect(const char* const* environment);

}  // namespace holdfast::config
