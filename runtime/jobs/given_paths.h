// Checks or opens the files and folders that settings name. An error names the setting and says
// what to do.
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

// Opens the trace in HOLDFAST_TRACE. If that is unset, the trace is off.
[[nodiscard]] Result<io::Trace> open_trace(const config::Settings& settings,
                                           const std::string& role);

// Holds the lifeline HOLDFAST_LIFELINE; nullopt if that is unset. Only an agent makes the file.
[[nodiscard]] Result<std::optional<os::Lifeline>> hold_lifeline(const config::Settings& settings);

}  // namespace holdfast::runtime
