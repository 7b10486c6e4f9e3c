// What settings name by a path, tried or opened. An error names the setting and says what to do.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "config/settings.h"
#include "io/trace.h"
#include "os/lifeline.h"

namespace holdfast::runtime {

// Checks that files can be made in `folder`, the value of `setting`. Makes a missing folder.
[[nodiscard]] Status check_folder(std::string_view setting, const std::string& folder,
                                  mode_t mode = 0700);

// HOLDFAST_TRACE; off where that is unset.
[[nodiscard]] Result<io::Trace> open_trace(const config::Settings& settings,
                                           const std::string& role);

// HOLDFAST_LIFELINE; none where that is unset. Its agent has made the file; nobody else does.
[[nodiscard]] Result<std::optional<os::Lifeline>> hold_lifeline(const config::Settings& settings);

}  // namespace holdfast::runtime
