// last_exception(): of which exception a Python program has ended, by what it has written.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::apps {

// "ValueError: no data", of the last traceback in `words`; empty where there is none. Addresses in
// it, which no two processes share, are left out. Of an exception that tells of another process's
// end, which is no fault of this one's, nothing.
[[nodiscard]] std::string last_exception(std::string_view words);

}  // namespace holdfast::apps
