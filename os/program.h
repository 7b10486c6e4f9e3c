// Finds a program as a shell would, and says why it can not be started.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace holdfast::os {

// The path of a program: `name` itself where it has a slash, else the first match in `path` (as the
// variable PATH: folders with ':' between). Errors say which: not found, not executable, a folder.
Result<std::string> find_program(const std::string& name, std::string_view path);

}  // namespace holdfast::os
