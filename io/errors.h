// The one place where errno and asio's errors become an Error.
#pragma once

#include <string_view>
#include <system_error>

#include "base/result.h"

namespace holdfast::io {

// "<what failed>: <the system's words>", e.g. "cannot open /x: Permission denied". `what` names the
// thing. Blame is the world's.
Error system_error(std::string_view what, int error_number);
Error system_error(std::string_view what, const std::error_code& code);

}  // namespace holdfast::io
