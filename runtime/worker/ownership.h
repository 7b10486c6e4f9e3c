// Ownership: one process at a time may write to a rank's arena. Who takes it over makes sure first
// that the process that had it is dead; the scheduler's word alone does not prove that (P23).
#pragma once

#include <functional>
#include <string>

#include "base/ids.h"
#include "base/result.h"

namespace holdfast::runtime {

// Does: waits until the owner that is written down beside the arena at `path` can not write any
// more, and writes this process down. An owner that a signal has stopped would never end of itself
// and is ended (SIGKILL); one that runs hears from the scheduler that it has been replaced, and
// ends. Requires: the scheduler has given the place to this process. `pause` is called between two
// looks and ends the waiting by its error. Errors: that; the owner lives on for longer than
// `patience`. Cost where nobody has to be waited for: some ten microseconds.
[[nodiscard]] Status take_ownership(const std::string& path, const std::function<Status()>& pause,
                                    Duration patience);

}  // namespace holdfast::runtime
