// last_exception(): the exception that ended a Python program, by what it has written.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::apps {

// "ValueError: no data", from the last traceback in `words`. Addresses are left out, because they
// differ between processes. Empty if there is no traceback, or if the exception tells of another
// process's end.
[[nodiscard]] std::string last_exception(std::string_view words);

}  // namespace holdfast::apps
