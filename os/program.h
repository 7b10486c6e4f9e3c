// Finds a program as a shell would, and says why it can not be started.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace holdfast::os {

// The path of a program: `name` itself if it has a slash, else the first match in `path`, which is
// like the variable PATH. An error says whether it is not found, not executable or a folder.
Result<std::string> find_program(const std::string& name, std::string_view path);

}  // namespace holdfast::os
