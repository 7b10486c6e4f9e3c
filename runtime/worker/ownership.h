// Ownership: one process at a time may write to a rank's arena. A process that takes an arena over
// first makes sure that the former owner is dead. The scheduler's word alone does not prove that
// (P23).
#pragma once

#include <functional>
#include <string>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::runtime {

// Waits until the owner that is written down beside the arena at `path` can not write any more.
// Then writes this process down. A running owner hears from the scheduler that it was replaced, and
// ends. An owner that a signal has stopped would not end, so it is ended (SIGKILL). Requires: the
// scheduler has given the place to this process. `pause` is called between two looks; its error
// ends the waiting. Errors: that of `pause`, or the owner lives on for longer than `patience`.
// Costs some ten microseconds if there is nobody to wait for.
[[nodiscard]] Status take_ownership(const std::string& path, const std::function<Status()>& pause,
                                    Duration patience);

}  // namespace holdfast::runtime
