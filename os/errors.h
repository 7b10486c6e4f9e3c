// The one place where errno and asio's errors become an Error.
#pragma once

#include <string>
#include <string_view>
#include <system_error>

#include "base/result.h"

namespace holdfast::os {

// "<what failed>: <the system's words>", e.g. "cannot open /x: Permission denied". `what` names the
// thing. If a limit was met, the error says how to raise it. The blame is the world's.
Error system_error(std::string_view what, int error_number);
Error system_error(std::string_view what, const std::error_code& code);

// The system's words for errno, e.g. "Permission denied".
[[nodiscard]] std::string last_system_error();

// system_error() for a process or a thread that could not be made. It names the limits to raise.
Error no_task(std::string_view what, int error_number);

}  // namespace holdfast::os
